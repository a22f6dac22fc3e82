"""vLLM's own CPU build (0.30 and 0.32): rows over the expert-parallel group, linears that it cannot run dequantised."""

from vllm_megamoe.lanes.cpu.linears import answering_config, inner_config, layer_method
from vllm_megamoe.lanes.cpu.load_again import check_whole
from vllm_megamoe.lanes.cpu.parallel_state import read_seat
from vllm_megamoe.lanes.cpu.shared_experts import take_shared
from vllm_megamoe.lanes.cpu.workers import enter, prepare, settle, start
from vllm_megamoe.lanes.moe_method import MegaMoeMethod as Method

OWN_ROWS = False

__all__ = [
    "OWN_ROWS",
    "Method",
    "answering_config",
    "check_whole",
    "enter",
    "inner_config",
    "layer_method",
    "prepare",
    "read_seat",
    "settle",
    "start",
    "take_shared",
]
