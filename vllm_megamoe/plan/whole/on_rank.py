"""What a whole model takes on a rank: weights of each pipeline stage, and the cache of a sequence."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat
from vllm_megamoe.checkpoint.names import names_of
from vllm_megamoe.checkpoint.recognise import SideFiles, make_reader, section_of
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.whole.model import WholeModel
from vllm_megamoe.plan.whole.tensors import Block, Part, Tensors

BitsOf = Callable[[str], float]
"""Bits of a stored number of a linear layer, by the module's name."""

_BITS: tuple[tuple[str, float], ...] = (
    ("mxfp8", 8.25),
    ("w4a8-mxfp", 4.25),
    ("mxfp4", 4.25),
    ("deepseek-v4-fp4", 4.25),
    ("nvfp4", 4.5),
    ("w4", 4.0),
    ("int4", 4.0),
    ("w8", 8.0),
    ("int8", 8.0),
    ("fp8", 8.0),
)
"""Bits by a word of a format's name, scales of blocks of up to 32 included; the first that is found counts."""


def bits_of_format(form: ExpertsFormat, default: float = 16.0) -> float:
    """Bits of a number that is stored in a format, the default for one that is not known; small scales left out."""
    name = form.name
    found = next((bits for word, bits in _BITS if word in name), default)
    return found + 0.125 if "group" in name and found < 8 else found


def stored_bits(config: Mapping[str, Any], side_files: SideFiles, default: float) -> BitsOf:
    """From a module's name to the bits that its file keeps of a number.

    Args:
        default: of the model's own dtype.

    Raises:
        ConfigError: a value of the quantisation's description is not what its key promises.
    """
    section = section_of(config)
    if not section and not any(side_files.values()):
        return lambda name: default
    read = make_reader(section, side_files)

    @functools.cache
    def bits(name: str) -> float:
        form = read(names_of(name))
        return default if form == BF16 else bits_of_format(form, default)

    return bits


def kind_of(layer: MoeFacts) -> MoeFacts:
    """A layer without its name and number: layers of a kind are planned alike."""
    return replace(layer, name="", index=-1)


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Bytes of the weights on the fullest rank.

    Attributes:
        routed: operands of the operator, fused shared experts and padding included; of layers that could not be planned
            what their checkpoint keeps.
        parts: all others, by part.
        stage: of the pipeline, the one with the most bytes.
        table: bytes of the token table among them, which no step reads whole.
    """

    routed: float
    parts: Mapping[Part, float]
    stage: int = 0
    table: float = 0.0

    @property
    def total(self) -> int:
        """All of them."""
        return round(self.routed + sum(self.parts.values()))

    @property
    def other(self) -> int:
        """All but the operator's."""
        return round(sum(self.parts.values()))


def stage_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage; what is left over goes to the last stages but one (vLLM's get_pp_indices)."""
    sizes = [layers // stages] * stages
    for place in range(layers % stages):
        sizes[-(place + 2) % stages] += 1
    return tuple(sizes)


def rank_weights(
    whole: WholeModel, layers: Sequence[MoeFacts], plan: Plan, bits: BitsOf, vocabulary_bits: float = 16.0
) -> RankWeights:
    """The fullest rank's weights: stages of the pipeline one by one, each cut over the tensor-parallel ranks.

    Args:
        layers: MoE layers as the model has them, planned or not.
        plan: of all of them, or of one of each kind.
        bits: of linear layers.
        vocabulary_bits: of embeddings, norms and whatever no tool quantises.
    """
    engine = plan.engine
    decoder = [block for block in whole.blocks if not block.draft]
    drafts = [block for block in whole.blocks if block.draft]
    ends = [0]
    for size in stage_sizes(len(decoder), engine.pipeline_parallel):
        ends.append(ends[-1] + size)
    planned = {kind_of(layer.facts): layer for layer in plan.layers}
    facts = {(layer.draft, layer.index): layer for layer in layers if not layer.draft}
    draft_facts = [layer for layer in layers if layer.draft]
    numbers = {block.number for block in decoder}
    # Layers whose number is not known (facts taught from outside) are spread evenly.
    elsewhere = [layer for layer in layers if not layer.draft and layer.index not in numbers]
    share = sum(_routed(layer, planned, engine) for layer in elsewhere) / engine.pipeline_parallel
    found = []
    for stage in range(engine.pipeline_parallel):
        last = stage == engine.pipeline_parallel - 1
        inside = [(block, facts.get((False, block.number))) for block in decoder[ends[stage] : ends[stage + 1]]]
        if last:
            inside += list(zip(drafts, draft_facts, strict=False))
        outside = (*(whole.before if stage == 0 else ()), *(whole.after if last else ()))
        weights = _stage(stage, inside, outside, planned, engine, bits, vocabulary_bits)
        found.append(replace(weights, routed=weights.routed + share))
    return max(found, key=lambda weights: weights.total)


def _stage(
    number: int,
    inside: Iterable[tuple[Block, MoeFacts | None]],
    outside: Iterable[Tensors],
    planned: Mapping[MoeFacts, LayerPlan],
    engine: EngineFacts,
    bits: BitsOf,
    plain_bits: float,
) -> RankWeights:
    parts: dict[Part, float] = {}
    routed = table = 0.0
    tensor_parallel = engine.tensor_parallel

    def add(part: Part, size: float) -> None:
        parts[part] = parts.get(part, 0.0) + size

    for block, moe in inside:
        layer = planned.get(kind_of(moe)) if moe is not None else None
        if moe is not None:
            routed += _routed(moe, planned, engine)
        for tensors in block.tensors:
            if tensors.part == "shared experts" and moe is not None and moe.shared is not None and tensors.linear:
                if layer is not None and layer.shared.mode == "fused":
                    continue  # among the operator's own
                size = bits_of_format(moe.shared.experts_format, plain_bits) / 8
                # vLLM copies them where rows are split; vllm-ascend, whose ranks have own rows, cuts them all the same.
                split = not engine.own_rows and engine.data_parallel > 1 and engine.splits_rows(moe)
                cut = 1 if split else tensor_parallel
                add(tensors.part, tensors.elements * size / cut)
                continue
            each = bits(f"model.layers.{block.number}.{tensors.linear}") if tensors.linear else plain_bits
            add(tensors.part, tensors.on_a_rank(tensor_parallel) * each / 8)
    for tensors in outside:
        size = tensors.on_a_rank(tensor_parallel) * plain_bits / 8
        add(tensors.part, size)
        table += 0 if tensors.read else size
    return RankWeights(routed, parts, number, table)


def _routed(moe: MoeFacts, planned: Mapping[MoeFacts, LayerPlan], engine: EngineFacts) -> float:
    layer = planned.get(kind_of(moe))
    return layer.weight_bytes if layer is not None else _as_stored(moe, engine)


def _as_stored(moe: MoeFacts, engine: EngineFacts) -> float:
    matrices = 2 if moe.activation.name.endswith("_no_mul") else 3
    elements = moe.num_experts * matrices * moe.hidden * moe.intermediate_hidden
    return elements * bits_of_format(moe.experts_format) / 8 / engine.ep_size
