"""What a checkpoint or a model has and vLLM's CPU build has no place for: given one, or named at load.

* Norms with a bias: msModelSlim's outlier suppression shifts the output of a norm and takes the shift back in the next
  linears (vllm-ascend 0.30.0rc2, ops/layernorm.py). vLLM's models have no such parameter and drop it in silence.
* Linears with a bias that the model has not; a zero one is dropped, any other is rejected.
* Scales of a quantised KV cache or attention: the cache stays in the model's dtype here, so they are left out.
* Blocks of the KV cache that held NaN: attention multiplies what lies behind a sequence's end by 0, so the next request
  in such a block would become NaN too. vLLM can zero blocks before they are used, and does so for other caches.
* Sigmoid routing without groups (MiniMax-M2): vLLM's CPU router knows it as routing with one group.
* Attention of DeepSeek-V4 asks a Triton kernel which request a token is of; without triton-cpu the engine starts, and
  its first request ends it with a TypeError (vLLM 0.32, v1/attention/ops/metadata.py).
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config, get_current_vllm_config_or_none
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_megamoe.checkpoint.headers import read_headers
from vllm_megamoe.checkpoint.names import names_of
from vllm_megamoe.checkpoint.recognise import MSMODELSLIM_FILES, SideFiles
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.lanes.quant_config import UNUSED_SUFFIXES, MegaMoeConfig

logger = logging.getLogger(__name__)

_NORM_BIAS = re.compile(r"norm\w*\.bias$")


def start(vllm_config: Any) -> None:
    """Called in a worker before each layer of a model is built; what was done stays done."""
    _teach_router()
    text_config = getattr(vllm_config.model_config, "hf_text_config", None)
    _tell_of_triton(getattr(text_config, "model_type", ""))
    config = vllm_config.quant_config
    if isinstance(config, MegaMoeConfig):
        _name_unused(_described(config.side_files))
        if _has_norm_bias(config):
            for norm in (RMSNorm, GemmaRMSNorm):
                _give_bias(norm)


def _described(side_files: SideFiles) -> Mapping[str, Any]:
    """msModelSlim's list of tensors; empty where another tool wrote the checkpoint."""
    return next((side_files[name] for name in MSMODELSLIM_FILES if side_files.get(name)), {})


def _has_norm_bias(config: MegaMoeConfig) -> bool:
    return any(map(_NORM_BIAS.search, _described(config.side_files)))


def _give_bias(norm: type[CustomOp]) -> None:
    """Let vLLM build a norm of ours in the place of its own, which has a bias where the engine's checkpoint has."""
    if norm.__name__ in op_registry_oot:
        return

    class Biased(norm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            current = get_current_vllm_config_or_none()
            config = None if current is None else current.quant_config
            if isinstance(config, MegaMoeConfig) and _has_norm_bias(config):
                self.bias = torch.nn.Parameter(torch.zeros_like(self.weight), requires_grad=False)

        def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
            y = super().forward(x, residual)
            bias = getattr(self, "bias", None)
            if bias is None:
                return y
            return y + bias if residual is None else (y[0] + bias, y[1])

    name = norm.name
    norm.register_oot(Biased, name=norm.__name__)
    # Registration renames the class; vLLM switches its operations on and off by the first name.
    Biased.name = name


@cache
def clean_new_blocks() -> None:
    """Let the scheduler name, and the runner zero, each block of the KV cache that a request is given."""
    KVCacheConfig.needs_kv_cache_zeroing = property(lambda self: True)


@cache
def _teach_router() -> None:
    route = CPURouter._compute_routing

    def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.scoring_func == "sigmoid" and not self.use_grouped_topk and self.custom_routing_function is None:
            # One group of which one is taken: the mask of groups leaves all experts, the rest is the same rule.
            self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1
        return route(self, *args, **kwargs)

    CPURouter._compute_routing = compute


@cache
def _tell_of_triton(model_type: str) -> None:
    from vllm.triton_utils import HAS_TRITON

    if model_type.startswith("deepseek_v4") and not HAS_TRITON:
        logger.warning(
            "megamoe: vLLM's attention of %s needs Triton for CPUs (triton-cpu), which is not here: the engine starts, "
            "and its first request ends it with \"'function' object is not subscriptable\". Install triton-cpu, or try "
            "the experts alone (vllm-megamoe check)",
            model_type,
        )


def _name_unused(description: Mapping[str, Any]) -> None:
    found = [name for name in description if name.endswith(UNUSED_SUFFIXES)]
    if found:
        _warn_once(found[0], len(found))


@cache
def _warn_once(first: str, count: int) -> None:
    logger.warning(
        "megamoe: twin only: %d tensors of a quantised KV cache or attention (%s, ...) are not used on a CPU: the "
        "cache keeps the model's dtype, results are those of an unquantised one",
        count,
        first,
    )


def check_bias(projections: Iterable[str], config: MegaMoeConfig) -> None:
    """Reject a bias that the description lists for a linear that has none in vLLM's model.

    Args:
        projections: names of the linear's projections.
        config: of the engine that is the current one.

    Raises:
        CheckpointError: it is not 0, or cannot be looked at.
    """
    description = _described(config.side_files)
    for projection in projections if description else ():
        name = next((f"{name}.bias" for name in names_of(projection) if f"{name}.bias" in description), "")
        if not name:
            continue
        folder = get_current_vllm_config().model_config.model
        if os.path.isdir(folder) and not bool(_read(Path(folder), name).any()):
            logger.info("megamoe: %s is 0 everywhere and left out: the model has no place for it", name)
            continue
        raise CheckpointError(
            f"{name} is not 0, or the checkpoint is no local folder; expected no bias, because vLLM's model has no "
            "place for it. Quantise without outlier suppression by shifts, or serve it with vllm-ascend."
        )


def _read(folder: Path, name: str) -> Tensor:
    from safetensors import safe_open

    entry = read_headers(folder).entries.get(name)
    if entry is None:
        return torch.zeros(1)
    with safe_open(folder / entry.file, "pt") as file:
        found: Tensor = file.get_tensor(name)
    return found
