"""vllm-ascend 0.30.0rc2 with vLLM 0.30: rows prepared as MC2, the operator in place of its MoE kernels.

    config_stage      options out of vllm-ascend's sight, what contradicts us
    machine           product and revision of this machine
    moe_rows          MoE layers always get rows as MC2 prepares them, with a mask as long as the rows
    parallel_state    the communicator, from its making to its end, sleep between
    method            weights in, rows out
    eplb              what vllm-ascend's dynamic EPLB moves
    other_layers      linears, attention, embeddings: vllm-ascend's own config and methods
    shared_experts    a shared MLP that the operator takes over
    worker            a worker's first step

Nothing here imports vllm-ascend before it is needed: the package stands in no environment without NPU.
"""

from vllm_megamoe.lanes.ascend.config_stage import prepare, settle
from vllm_megamoe.lanes.ascend.method import AscendMegaMoeMethod as Method
from vllm_megamoe.lanes.ascend.other_layers import answering_config, check_whole, inner_config, layer_method
from vllm_megamoe.lanes.ascend.parallel_state import read_seat
from vllm_megamoe.lanes.ascend.shared_experts import take_shared
from vllm_megamoe.lanes.ascend.worker import enter, start

OWN_ROWS = True

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
