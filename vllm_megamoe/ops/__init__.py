"""The operator: names and signatures of `cann_ops_transformer.ops`, run by that package on an NPU, else by the twin.

`transform_weights_for_mega_moe` turns plain BF16 weights into what a call takes (docs/operator.md).
Profiles, numerics and time-outs, which the signature has no place for, are set by `settings(...)`.
"""

from vllm_megamoe.experts.convert import transform_weights_for_mega_moe
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.ops.api import get_symm_buffer_for_mega_moe, mega_moe
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import settings

__all__ = [
    "LayerOperands",
    "SymmBuffer",
    "get_symm_buffer_for_mega_moe",
    "mega_moe",
    "settings",
    "transform_weights_for_mega_moe",
]
