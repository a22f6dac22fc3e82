"""A model's shared MLP as experts of the operator: cut to the routed width, converted like the routed ones."""

from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.method.gate_up import cut_mlp
from vllm_megamoe.method.load_weights import LayerOperands, convert_experts
from vllm_megamoe.plan.layer_plan import LayerPlan


def convert_shared(w13: Tensor, w2: Tensor, plan: LayerPlan) -> LayerOperands:
    """The whole, unsharded MLP into `plan.shared.pieces` shared experts.

    Every rank holds all of it, because each computes its own rows.

    Args:
        w13: [2S, H], gate rows first.
        w2: [H, S].
        plan: of the layer; S must be `pieces` times the routed width.

    Raises:
        ConfigError: the loaded MLP is not what the plan was made for.
    """
    pieces = plan.shared.pieces
    got, wanted = (w2.shape[1], w2.shape[0]), (pieces * plan.padding.intermediate_was, plan.padding.hidden_was)
    if got != wanted or w13.shape != (2 * w2.shape[1], w2.shape[0]):
        raise ConfigError(
            f"{plan.facts.name}: the shared experts have weights {list(w13.shape)} and {list(w2.shape)}; the plan "
            f"wanted {pieces} of width {plan.padding.intermediate_was} on rows of {plan.padding.hidden_was}. Set "
            '"fuse_shared_experts": "off".'
        )
    return convert_experts(*cut_mlp(w13, w2, pieces), plan)
