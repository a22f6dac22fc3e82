"""Place the experts of a running engine anew: `llm.collective_rpc(rearrange_experts, args=("placement.json",))`."""

import logging
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer.moving import move_experts
from vllm_megamoe.plan.placement import placed

logger = logging.getLogger(__name__)


def rearrange_experts(worker: Any, file: str) -> int:
    """Move the experts of all layers to the slots of a placement file; a function for vLLM's `collective_rpc`.

    Every rank reads the file. The number of slots stays as the engine was started with; a layer that the file leaves
    out stays as it is.

    Args:
        worker: vLLM's worker.
        file: see plan.placement.

    Returns:
        Slots of this rank that got another expert.

    Raises:
        ConfigError: with all that is wrong; nothing has moved then.
    """
    modules = [module for module in worker.get_model().modules() if hasattr(module, "mega_moe")]
    if not modules:
        raise ConfigError("the engine has no MoE layer of ours on this rank; serve it with --quantization megamoe.")
    states = [module.mega_moe for module in modules]
    layers, wrong = placed([state.plan.facts for state in states], file, states[0].seat.size)
    if wrong:
        raise ConfigError("\n".join(wrong))
    moved = 0
    for module, facts in zip(modules, layers, strict=True):
        state = module.mega_moe
        if facts.slots:
            moved += move_experts(state, facts.slots)
            # Weights that are loaded again go where the experts stand now.
            module.quant_method.plan = state.plan
            module.mega_moe_experts.stand_in(state.plan.slots_of(state.seat.rank))
    logger.info("megamoe: %d expert slots of rank %d rearranged by %s", moved, states[0].seat.rank, file)
    return moved
