"""The checkpoint's own quantisation config, which keeps every layer that is not a MoE layer (vLLM 0.32)."""

from typing import Any

from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig


def make_inner(section: dict[str, Any]) -> QuantizationConfig:
    """Build the config class that vLLM itself would choose for this `quantization_config`, the flag apart."""
    method = str(section.get("quant_method", ""))
    for name in QUANTIZATION_METHODS:
        if name == "megamoe":
            continue
        override = get_quantization_config(name).override_quantization_method(section, None)
        if override is not None:
            method = override
            break
    return get_quantization_config(method).from_config(section)
