"""Which method a linear of a quantised checkpoint gets on a CPU: vLLM's own where it runs, else dequantised at load.

Whether vLLM's class and kernel run is asked, not listed: a linear of the same sizes is built, processed and run once.
Dequantised linears compute in the model's dtype with the numbers that the checkpoint means; that is more exact than a
device, which quantises activations, and is said in the log.
"""

import logging
from collections import Counter
from functools import partial
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.linear import LinearBase, MergedColumnParallelLinear, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from vllm_megamoe.checkpoint.formats import BF16, OWN_PREFIX
from vllm_megamoe.checkpoint.recognise import Section, SideFiles
from vllm_megamoe.lanes.collected import Collected
from vllm_megamoe.lanes.cpu.gaps import check_bias
from vllm_megamoe.lanes.cpu.load_again import loadable_again
from vllm_megamoe.lanes.cpu.shared_experts import is_fused
from vllm_megamoe.lanes.projections import Projection, formats_of, projections_of
from vllm_megamoe.lanes.quant_config import MegaMoeConfig, vllms_config

logger = logging.getLogger(__name__)

_READ_AS_WEIGHT = ("kv_b_proj",)
"""Linears whose weight latent attention reads beside running them."""

_WHOLE = "vLLM reads the weight itself, or drops g_idx"


def inner_config(section: Section | None, side_files: SideFiles) -> QuantizationConfig | None:
    """vLLM's config of the layers without experts; msModelSlim's files have none."""
    return vllms_config(section)


def answering_config(inner: Any) -> None:
    """Nobody: vLLM asks a quantisation config for nothing more."""
    del inner


def layer_method(layer: Any, prefix: str, config: MegaMoeConfig) -> Any:
    """The method of a layer without experts, made to take weights again; None leaves the choice to vLLM.

    Raises:
        CheckpointError: a linear is stored in a way that cannot be read, or has a bias that the model has not.
        ConfigError: a config file's value is not what its key promises.
    """
    if isinstance(layer, LinearBase):
        return loadable_again(_linear_method(layer, prefix, config))
    found = None if config.inner is None else config.inner.get_quant_method(layer, prefix)
    return loadable_again(found) if isinstance(layer, VocabParallelEmbedding) else found


def _linear_method(layer: Any, prefix: str, config: MegaMoeConfig) -> Any:
    inner = config.inner
    forms = formats_of(prefix, config)
    quantised = [form for form in forms.values() if form != BF16]
    if not layer.has_bias:
        # A static quantisation has its bias among its integers, and `Collected` adds it.
        bare = [name for name, form in forms.items() if form.name != "msmodelslim-w8a8"]
        check_bias(bare, config)
    shared = any(component.startswith("share") for component in prefix.split("."))
    if not quantised and not shared:
        return UnquantizedLinearMethod()
    projections = projections_of(prefix, config)
    own = any(form.name.startswith(OWN_PREFIX) for form in quantised)
    must_collect = _must_collect(prefix, projections) or own or (shared and _fuses(config))
    if quantised and inner is not None and not must_collect:
        why_not = _runs(inner, layer, prefix)
        if not why_not:
            return inner.get_quant_method(layer, prefix)
    else:
        why_not = "vLLM has no class for them" if own or inner is None else _WHOLE
    if quantised:
        TALLY.add(str(quantised[0]), layer, why_not)
    runners = get_current_vllm_config().compilation_config.static_forward_context
    return Collected(projections, partial(is_fused, runners) if shared else _never, TALLY.tell)


def _must_collect(prefix: str, projections: tuple[Projection, ...]) -> bool:
    """Whether vLLM's own method would do something else: attention reads the weight, or inputs are out of order."""
    reordered = any(part.name == "g_idx" for each in projections for part in each.stored.parts)
    return reordered or prefix.rpartition(".")[2] in _READ_AS_WEIGHT


def _never(layer: Any) -> bool:
    return False


def _fuses(config: MegaMoeConfig) -> bool:
    """Whether the plan runs the shared experts of any layer within the operator."""
    return config.carried is not None and any(p.shared.mode == "fused" for p in config.carried.plan.layers)


_ASKED: dict[tuple[object, ...], str] = {}


def _runs(inner: QuantizationConfig, layer: Any, prefix: str) -> str:
    """Why vLLM cannot run this linear here; empty when it can."""
    inputs = getattr(layer, "input_size_per_partition", layer.input_size)
    key = (id(inner), inputs, *layer.output_partition_sizes, prefix.rpartition(".")[2])
    if key not in _ASKED:
        _ASKED[key] = _try(inner, inputs, list(layer.output_partition_sizes), prefix)
    return _ASKED[key]


def _try(inner: QuantizationConfig, inputs: int, outputs: list[int], prefix: str) -> str:
    """Build a linear of these sizes with vLLM's own method, process it, and run two rows through it."""
    try:
        linear = MergedColumnParallelLinear(
            inputs, outputs, bias=False, quant_config=inner, prefix=prefix, disable_tp=True, return_bias=False
        )
        if isinstance(linear.quant_method, UnquantizedLinearMethod):
            return "vLLM takes them for unquantised"
        for parameter in linear.parameters():
            _fill(parameter.data)
        linear.quant_method.process_weights_after_loading(linear)
        linear(torch.zeros(2, inputs, dtype=linear.params_dtype))
    except Exception as error:  # whatever keeps vLLM from running it is the answer, and is logged
        return f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(". ")
    return ""


def _fill(data: torch.Tensor) -> None:
    """Legal numbers: 1 for scales, 0 for codes of any kind."""
    if data.dtype in (torch.float32, torch.bfloat16, torch.float16):
        data.fill_(1)
    else:
        data.view(torch.uint8).zero_()


class Tally:
    """Which linears of this process are dequantised, told once the model is built."""

    def __init__(self) -> None:
        self._layers: Counter[tuple[str, str]] = Counter()
        self._bytes = 0

    def add(self, form: str, layer: Any, why: str) -> None:
        """Count a linear.

        Args:
            form: the format's name.
            layer: under construction.
            why: what keeps vLLM from running it.
        """
        inputs = getattr(layer, "input_size_per_partition", layer.input_size)
        self._layers[form, why] += 1
        self._bytes += inputs * sum(layer.output_partition_sizes) * layer.params_dtype.itemsize

    def tell(self) -> None:
        """Log what has been counted since the last time; the first tensor-parallel rank speaks for all."""
        if self._layers and get_tensor_model_parallel_rank() == 0:
            what = "; ".join(f"{count} of {form} ({why})" for (form, why), count in sorted(self._layers.items()))
            logger.warning(
                "megamoe: twin only: linear layers are dequantised at load, %.1f MiB a rank: %s",
                self._bytes / 2**20,
                what,
            )
        self._layers.clear()
        self._bytes = 0


TALLY = Tally()
"""The one of this process."""
