"""transformers' fp8 in blocks, DeepSeek-V4's variant of it, and MXFP8 under its own name."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise import modelopt
from vllm_megamoe.checkpoint.recognise.facts import BF16
from vllm_megamoe.checkpoint.recognise.lists import Patterns, listed
from vllm_megamoe.checkpoint.recognise.names import Names

LEFT_OUT = ("modules_to_not_convert", "ignored_layers", "exclude", "ignore")


def reader(section: Mapping[str, Any], expert_dtype: str = "") -> Callable[[Names], str]:
    """The format of one projection.

    Args:
        section: the quantization_config.
        expert_dtype: config.json's key of that name: DeepSeek-V4 keeps routed experts in `fp4` beside fp8 linears.
    """
    by_blocks = "fp8-block-ue8m0" if section.get("scale_fmt") == "ue8m0" else "fp8-block"
    plain = by_blocks if section.get("weight_block_size") else "fp8"
    # ModelOpt re-quantised the routed experts of some of these files and says so beside the original keys.
    over = modelopt.layers(section) if section.get("moe_quant_algo") else None
    left_out = Patterns([] if over else listed(section, *LEFT_OUT), inside=True)

    def read(names: Names) -> str:
        if over and (found := over(names)) != BF16:
            return found
        if left_out.match(names):
            return BF16
        return "deepseek-v4-fp4" if expert_dtype == "fp4" and any(".experts." in name for name in names) else plain

    return read


def mxfp8_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """MiniMax-M3: e4m3 codes with e8m0 scales, named like fp8's."""
    left_out = Patterns(listed(section, *LEFT_OUT), inside=True)
    return lambda names: BF16 if left_out.match(names) else "mxfp8"


def mxfp4_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """gpt-oss: blocks of FP4 for all experts of a layer in one tensor."""
    left_out = Patterns(listed(section, *LEFT_OUT), inside=True)
    return lambda names: BF16 if left_out.match(names) else "gpt-oss-mxfp4"
