"""The arguments of a layer's calls that never change, put together once at load."""

from typing import Any

from vllm_megamoe.method.load_weights import LayerOperands
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.use_cases import USE_CASES


def constant_arguments(plan: LayerPlan, routed: LayerOperands, shared: LayerOperands | None) -> dict[str, Any]:
    """Keyword arguments of `mega_moe` beside x, topk_ids, topk_weights, sym_buffer and x_active_mask.

    Activation, clamp and parameters are always explicit (B41, B43, B44); no parameters are None, not an empty mapping.
    """
    weight_type = USE_CASES[plan.use_case].weight_type
    arguments: dict[str, Any] = {
        "l1_weights": routed.l1,
        "l2_weights": routed.l2,
        "l1_weights_sf": routed.l1_sf,
        "l2_weights_sf": routed.l2_sf,
        "l1_bias": routed.l1_bias,
        "l2_bias": routed.l2_bias,
        "activation": plan.activation.name,
        "activation_clamp": plan.activation.clamp,
        "activation_params": dict(plan.activation.params) or None,
        "weight1_type": weight_type,
        "weight2_type": weight_type,
    }
    if shared is None:
        return arguments
    # Shared experts have no bias in any use case (operator_readme.txt, sharedBias1 and sharedBias2).
    return arguments | {
        "shared_l1_weights": shared.l1,
        "shared_l2_weights": shared.l2,
        "shared_l1_weights_sf": shared.l1_sf,
        "shared_l2_weights_sf": shared.l2_sf,
        "shared_weight1_type": weight_type,
        "shared_weight2_type": weight_type,
    }
