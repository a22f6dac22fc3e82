"""A layer's loaded BF16 weights as operands, as its plan says: routed experts, and a shared MLP cut to their width."""

from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts
from vllm_megamoe.experts.convert import convert, in_halves
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


def convert_shared(experts: Experts, plan: LayerPlan) -> LayerOperands:
    """The shared MLP, cut to the routed width, into operands. Every rank holds all of it: each computes its own rows.

    Raises:
        ConfigError: the loaded MLP is not what the plan was made for.
    """
    got = (experts.num_experts, experts.intermediate, experts.hidden)
    expected = (plan.shared.pieces, plan.padding.intermediate_was, plan.padding.hidden_was)
    if got != expected:
        raise ConfigError(
            f"{plan.facts.name}: the shared experts are {got[0]} of width {got[1]} on rows of {got[2]}; the plan "
            f'expected {expected[0]} of width {expected[1]} on rows of {expected[2]}. Set "fuse_shared_experts": "off".'
        )
    return _operands(plan, experts)


def _operands(plan: LayerPlan, experts: Experts) -> LayerOperands:
    return convert(
        experts,
        plan.use_case,
        hidden=plan.padding.hidden,
        intermediate_hidden=plan.padding.intermediate_hidden,
        stacked=plan.stacked,
        in_place=True,
    )
