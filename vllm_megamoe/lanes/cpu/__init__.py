"""vLLM's own CPU build (0.30 and 0.32): rows over the expert-parallel group, linears that pack their weights."""

from vllm_megamoe.lanes.cpu.parallel_state import read_seat
from vllm_megamoe.lanes.cpu.shared_experts import linear_method, spare_fused, take_shared
from vllm_megamoe.lanes.cpu.workers import prepare, settle, start
from vllm_megamoe.lanes.moe_method import MegaMoeMethod as Method

OWN_ROWS = False

__all__ = [
    "OWN_ROWS",
    "Method",
    "linear_method",
    "prepare",
    "read_seat",
    "settle",
    "spare_fused",
    "start",
    "take_shared",
]
