"""A worker, before its first layer is built."""

from typing import Any

from vllm_megamoe.lanes.ascend import machine, moe_rows
from vllm_megamoe.lanes.ascend.parallel_state import MAIN, open_groups
from vllm_megamoe.lanes.startup import engines_plan


def enter() -> None:
    """Nothing: what processes without layers need is vllm-ascend's own business."""


def start(vllm_config: Any) -> None:
    """Confirm the machine, open the communicators, and have rows prepared as MC2 with a mask that is long enough.

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
