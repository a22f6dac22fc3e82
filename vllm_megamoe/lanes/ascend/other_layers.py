"""Layers without experts: vllm-ascend's own config and methods, as without our flag.

A shared MLP that the operator takes over is the one exception: its linears keep the checkpoint's tensors for us.
"""

import importlib
from typing import Any

from vllm_megamoe.checkpoint.formats import OWN_PREFIX
from vllm_megamoe.checkpoint.recognise import Section, SideFiles, is_own
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.collected import Collected
from vllm_megamoe.lanes.projections import formats_of, projections_of
from vllm_megamoe.lanes.quant_config import NAME, MegaMoeConfig, vllms_config
from vllm_megamoe.plan.read_config.reader import number_in

MSMODELSLIM_FILE = "quant_model_description.json"
_CLASSES = ("modelslim_config", "compressed_tensors_config", "fp8_config", "modelopt_mxfp8_config")


def inner_config(section: Section | None, side_files: SideFiles) -> Any:
    """The config that vllm-ascend itself would make: msModelSlim's where its file is there, else the section's.

    None where the checkpoint has no quantisation of its own.

    Raises:
        ConfigError: vllm-ascend has none for this checkpoint.
    """
    for name in _CLASSES:  # they register themselves, in the order of vllm-ascend's own platform hook
        importlib.import_module(f"vllm_ascend.quantization.configs.{name}")
    method = (section or {}).get("quant_method")
    if MSMODELSLIM_FILE in side_files and method in (None, "", "ascend"):
        return _msmodelslim(section)
    made = vllms_config(section)
    if made is None and section and method != NAME:
        raise ConfigError(
            f"quantization_config with quant_method {method!r}: vllm-ascend has no class that takes it, so nothing can "
            "run the layers without experts; the log says why. Use a checkpoint of msModelSlim, compressed-tensors or "
            "block-wise fp8."
        )
    return made


def _msmodelslim(section: Section | None) -> Any:
    from vllm_ascend.quantization.configs.modelslim_config import AscendModelSlimConfig

    return AscendModelSlimConfig.from_config(dict(section)) if section else AscendModelSlimConfig()


def answering_config(inner: Any) -> Any:
    """Who answers for a quantisation config when vllm-ascend asks it for more than vLLM knows.

    Its layers read the description, the KV cache's quantisation and more; without one of its own, a checkpoint answers
    as an empty description of msModelSlim does.
    """
    return _msmodelslim(None) if inner is None else inner


def layer_method(layer: Any, prefix: str, config: MegaMoeConfig) -> Any:
    """The method of a layer without experts; None leaves the choice to vLLM.

    Raises:
        ConfigError: shared experts in this package's own format that the plan leaves to vllm-ascend, which has no
            class for it.
    """
    from vllm.model_executor.layers.linear import LinearBase
    from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod

    if isinstance(layer, LinearBase) and _is_fused(prefix, config):
        return Collected(projections_of(prefix, config), kept=lambda layer: True)
    if config.section is not None and is_own(config.section) and _is_own(prefix, config):
        raise ConfigError(
            f"{prefix}: shared experts in this package's own format, which the plan leaves to vllm-ascend; expected a "
            "plan that fuses them (profile 950@9.2, fuse_shared_experts not off). Convert the source again without "
            "--shared."
        )
    if config.inner is not None:
        return config.inner.get_quant_method(layer, prefix)
    # vllm-ascend's linears take no None (ops/linear.py, AscendLinearBase).
    return AscendUnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def _is_own(prefix: str, config: MegaMoeConfig) -> bool:
    return any(form.name.startswith(OWN_PREFIX) for form in formats_of(prefix, config).values())


def check_whole(vllm_config: Any) -> None:
    """Nothing: vllm-ascend's methods take weights again in their own way."""
    del vllm_config


def _is_fused(prefix: str, config: MegaMoeConfig) -> bool:
    """Whether a linear is part of a shared MLP that the plan runs within the operator."""
    if config.carried is None or not any(part.startswith("share") for part in prefix.split(".")):
        return False
    plans = [plan for plan in config.carried.plan.layers if number_in(plan.facts.name) == number_in(prefix)]
    return any(plan.shared.mode == "fused" for plan in plans)
