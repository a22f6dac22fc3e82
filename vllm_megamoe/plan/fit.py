"""Does a model fit: what a rank needs, what its device has, and what is left for the cache of sequences.

vLLM gives itself `--gpu-memory-utilization` of the device and puts into the cache what weights, communicators and the
largest step leave. What cannot be known before a step has run (activations of kernels, graphs) is counted as the least
that it can be, so that "does not fit" is sure and "fits" may be tight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_megamoe.checkpoint.recognise import SideFiles
from vllm_megamoe.environment import DEFAULT_MB
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.read_config.defaults import with_defaults
from vllm_megamoe.plan.read_config.reader import text_section
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.plan.whole.cache import cache_bytes
from vllm_megamoe.plan.whole.model import WholeModel, length_limit, read_whole
from vllm_megamoe.plan.whole.on_rank import BitsOf, RankWeights, rank_weights, stored_bits
from vllm_megamoe.profiles.devices import GIB, Device

DEFAULT_UTILIZATION = 0.92
"""vLLM 0.32's gpu_memory_utilization."""
DEFAULT_SEQUENCES = 256
"""vLLM 0.32's max_num_seqs of a server, on platforms that it has no figure for."""
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""vLLM's variable, 1 or true, that turns its refusal of a longer length than the model's into a warning."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Serving:
    """What is to be served, beside the parallel sizes.

    Attributes:
        device: where, None for a host whose memory nobody named.
        utilization: the share of its memory that the engine takes.
        max_model_len: tokens of the longest sequence.
        chosen_len: whether the user named that length; else it is the model's own, and may be lowered.
        max_num_seqs: sequences of a step, for each data-parallel rank.
        cache_bits: of a cached number.
        context_parallel: ranks over which a sequence's cache is spread (decode context parallelism).
    """

    device: Device | None
    utilization: float
    max_model_len: int
    chosen_len: bool
    max_num_seqs: int = DEFAULT_SEQUENCES
    cache_bits: int = 16
    context_parallel: int = 1

    @property
    def budget(self) -> int:
        """Bytes that the engine may take of a device."""
        return 0 if self.device is None else int(self.device.memory_gib * GIB * self.utilization)


@dataclass(frozen=True, slots=True)
class Fit:
    """One engine on its devices.

    Attributes:
        serving: what was asked for.
        weights: of the fullest rank.
        window: communicator's memory of the MoE layers.
        workspace: of the operator's largest call.
        communicators: the others' windows.
        step: the least that the largest step holds beside these: rows in the model's width, and logits.
        sequence: bytes of a sequence of `max_model_len` tokens on a rank.
        longest: tokens of the longest sequence that the rest holds; 0 for none.
    """

    serving: Serving
    weights: RankWeights
    window: int
    workspace: int
    communicators: int
    step: int
    sequence: int
    longest: int

    @property
    def used(self) -> int:
        """Bytes without the cache."""
        return self.weights.total + self.window + self.workspace + self.communicators + self.step

    @property
    def left(self) -> int:
        """Bytes for the cache; below 0 where there is no room for anything."""
        return self.serving.budget - self.used

    @property
    def sequences(self) -> int:
        """Sequences of full length that the rest holds on a rank."""
        return max(0, self.left // self.sequence) if self.sequence else 0

    @property
    def holds(self) -> bool:
        """Whether one sequence of full length fits; always where no device is named."""
        return self.serving.device is None or self.left >= self.sequence


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as far as memory goes.

    Attributes:
        whole: the model.
        layers: its MoE layers that are loaded.
        bits: of its linear layers.
        heads: attention heads, which tensor parallelism cuts.
    """

    whole: WholeModel
    layers: tuple[MoeFacts, ...]
    bits: BitsOf
    heads: int


def checkpoint_of(
    config: Mapping[str, Any],
    side_files: SideFiles,
    layers: Sequence[MoeFacts],
    dtype: str,
    linear_bits: float | None = None,
) -> Checkpoint:
    """A checkpoint from its config files.

    Args:
        layers: MoE layers that are loaded.
        dtype: of what no tool quantised.
        linear_bits: of linear layers, in place of what the files say.

    Raises:
        ConfigError: a value is not what its key promises.
    """
    heads = text_section(with_defaults(config)).get("num_attention_heads")
    found = stored_bits(config, side_files, 32.0 if dtype == "float32" else 16.0)
    bits: BitsOf = found if linear_bits is None else (lambda name: linear_bits)
    return Checkpoint(read_whole(config, layers), tuple(layers), bits, heads if isinstance(heads, int) else 0)


def fit(checkpoint: Checkpoint, plan: Plan, serving: Serving, hccl_buffsize_mb: int | None = None) -> Fit:
    """What a rank of the planned engine needs.

    Args:
        plan: of all layers, or of one of each kind.
        hccl_buffsize_mb: HCCL_BUFFSIZE as it will be set; None where the operator allocates for itself.
    """
    engine, whole = plan.engine, checkpoint.whole
    product = plan.profile.product != "none"
    window = sum(plan.window_bytes.values())
    if hccl_buffsize_mb is not None and window:
        window = max(window, 2 * hccl_buffsize_mb * _MIB * len(plan.window_bytes))
    # Every communicator has two halves of HCCL's default; only groups for MC2 follow HCCL_BUFFSIZE (vllm-ascend 0.30).
    others = 2 * DEFAULT_MB * _MIB if product and engine.tensor_parallel > 1 else 0
    element = 4 if engine.dtype == "float32" else 2
    step = 3 * engine.max_num_batched_tokens * whole.hidden * element + serving.max_num_seqs * whole.vocabulary * 4
    found = Fit(
        serving,
        rank_weights(whole, checkpoint.layers, plan, checkpoint.bits, 8.0 * element),
        window,
        max((layer.capacity.workspace_bytes for layer in plan.layers), default=0),
        others,
        step,
        _sequence(whole, engine, serving, serving.max_model_len),
        0,
    )
    return replace(found, longest=_longest(whole, engine, serving, found.left))


def _sequence(whole: WholeModel, engine: EngineFacts, serving: Serving, tokens: int) -> int:
    return cache_bytes(whole, engine, tokens, serving.cache_bits, serving.context_parallel)


def _longest(whole: WholeModel, engine: EngineFacts, serving: Serving, left: int) -> int:
    """The longest sequence, at most of the length that was asked for, whose cache fits into so many bytes."""
    low, high = 0, serving.max_model_len
    if serving.device is None or _sequence(whole, engine, serving, high) <= left:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if _sequence(whole, engine, serving, middle) <= left:
            low = middle
        else:
            high = middle
    return low


def overfull(found: Fit, better: EngineFacts | None) -> Violation | None:
    """What is wrong with an engine that does not fit; None where it does.

    Args:
        better: the smallest engine that fits, None where none does or was looked for.
    """
    serving = found.serving
    device = serving.device
    if found.holds or device is None:
        return None
    where = f"{serving.utilization:g} of {device.memory_gib:g} GiB of a device ({device.name})"
    parts = f"{_gib(found.weights.total)} GiB of weights"
    if found.left >= 0 and found.longest:
        got = (
            f"{_gib(found.left)} GiB are left for the cache, and a sequence of {serving.max_model_len} tokens takes "
            f"{_gib(found.sequence)} GiB"
        )
        remedy = f"Set --max-model-len to {found.longest} or less{_or_more(better)}."
        return Violation("memory", got, f"room for one sequence at least in {where}", remedy)
    more = found.used - found.weights.total
    got = f"{parts} and {_gib(more)} GiB of window, workspace, communicators and rows on a rank"
    expected = f"at most {_gib(serving.budget)} GiB: {where}"
    if better is None:
        remedy = (
            "No legal number of ranks makes it fit: use a checkpoint with fewer bits (--as plans one), a device with "
            "more memory (--device), or --pipeline-parallel-size."
        )
    else:
        remedy = f"Use {_named(better)}, the fewest ranks on which it fits, or a checkpoint with fewer bits."
    return Violation("memory", got, expected, remedy)


def too_long(serving: Serving, config: Mapping[str, Any], allowed: bool) -> Violation | None:
    """What is wrong with a length that the user named and vLLM rejects; None for one that it takes.

    Args:
        allowed: whether VLLM_ALLOW_LONG_MAX_MODEL_LEN is set, which makes it a warning.
    """
    limit = length_limit(config)
    if allowed or limit is None or not serving.chosen_len or serving.max_model_len <= limit:
        return None
    remedy = f"Set it to {limit} or less; {ALLOW_LONG}=1 makes vLLM take it, at your risk."
    return Violation("--max-model-len", f"{serving.max_model_len}", f"{limit} at most, as config.json says", remedy)


def _or_more(better: EngineFacts | None) -> str:
    return "" if better is None else f", or use {_named(better)}"


def _named(engine: EngineFacts) -> str:
    return f"tensor parallel {engine.tensor_parallel} x data parallel {engine.data_parallel}"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
