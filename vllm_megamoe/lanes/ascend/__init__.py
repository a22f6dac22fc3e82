"""vllm-ascend 0.30.0rc2 with vLLM 0.30: rows prepared as MC2, the operator in place of its MoE kernels.

    config_stage      options out of vllm-ascend's sight, what contradicts us
    machine           product and revision of this machine
    moe_rows          MoE layers always get rows as MC2 prepares them, with a mask as long as the rows
    parallel_state    the communicator, from its making to its end, sleep between
    method            weights in, rows out
    eplb              what vllm-ascend's dynamic EPLB moves
    other_layers      linears, attention, embeddings: vllm-ascend's own config and methods
    shared_experts    a shared MLP that the operator takes over

Nothing here imports vllm-ascend before it is needed: the package stands in no environment without NPU.
"""

from typing import Any

from vllm_megamoe.lanes.ascend import machine, moe_rows
from vllm_megamoe.lanes.ascend.config_stage import prepare, settle
from vllm_megamoe.lanes.ascend.method import AscendMegaMoeMethod as Method
from vllm_megamoe.lanes.ascend.other_layers import answering_config, check_whole, inner_config, layer_method
from vllm_megamoe.lanes.ascend.parallel_state import MAIN, open_groups, read_seat
from vllm_megamoe.lanes.ascend.shared_experts import take_shared
from vllm_megamoe.lanes.startup import engines_plan

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


def enter() -> None:
    """Nothing: what processes without layers need is vllm-ascend's own business."""


def start(vllm_config: Any) -> None:
    """In a worker, before its first layer is built.

    Confirm the machine, open the communicators, and have rows prepared as MC2 with a mask that is long enough.

    Raises:
        ConfigError: the plan was made for another machine.
    """
    if not moe_rows.is_ours(vllm_config):
        return
    carried = vllm_config.quant_config.carried or engines_plan()
    communicators = {MAIN}
    if carried is not None:
        machine.confirm(carried.plan.profile.name)
        communicators |= {layer.communicator for layer in carried.plan.layers}
    open_groups(frozenset(communicators))
    moe_rows.always_as_mc2()
    moe_rows.lengthen_mask(vllm_config)
    moe_rows.idle_batches_have_no_real_rows()
