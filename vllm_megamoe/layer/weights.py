"""A layer's loaded BF16 weights as operands, as its plan says: routed experts, and a shared MLP cut to their width."""

from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts
from vllm_megamoe.experts.convert import convert, cut_mlp, in_halves
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.plan.layer_plan import LayerPlan


def convert_routed(w13: Tensor, w2: Tensor, plan: LayerPlan) -> LayerOperands:
    """w13 [E, 2I, H] and w2 [E, H, I] as loaded -> operands.

    The weights are used up: operands may lie in their memory, rows may have been put in order. A quantised or padded
    operand has memory of its own; the caller drops its view of the weights, which are then freed.
    """
    if plan.facts.gate_up_interleaved:
        for gate_up in w13:
            gate_up.copy_(in_halves(gate_up))
    return _operands(plan, DenseExperts(w13, w2))


def convert_shared(w13: Tensor, w2: Tensor, plan: LayerPlan) -> LayerOperands:
    """The whole, unsharded MLP into `plan.shared.pieces` shared experts; the weights are left as they are.

    Every rank holds all of it, because each computes its own rows.

    Args:
        w13: [2S, H], gate rows first.
        w2: [H, S].
        plan: of the layer; S must be `pieces` times the routed width.

    Raises:
        ConfigError: the loaded MLP is not what the plan was made for.
    """
    pieces = plan.shared.pieces
    got, expected = (w2.shape[1], w2.shape[0]), (pieces * plan.padding.intermediate_was, plan.padding.hidden_was)
    if got != expected or w13.shape != (2 * w2.shape[1], w2.shape[0]):
        raise ConfigError(
            f"{plan.facts.name}: the shared experts have weights {list(w13.shape)} and {list(w2.shape)}; the plan "
            f"expected {pieces} of width {plan.padding.intermediate_was} on rows of {plan.padding.hidden_was}. Set "
            '"fuse_shared_experts": "off".'
        )
    return _operands(plan, cut_mlp(w13, w2, pieces))


def _operands(plan: LayerPlan, experts: DenseExperts) -> LayerOperands:
    return convert(
        experts,
        plan.use_case,
        hidden=plan.padding.hidden,
        intermediate_hidden=plan.padding.intermediate_hidden,
        stacked=plan.stacked,
        in_place=True,
    )
