"""Weights as vLLM loads them -> the operator's operands, one expert at a time, as the plan says."""

from dataclasses import dataclass, fields

from torch import Tensor

from vllm_megamoe.layout.cast import stack_experts
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.layout.operands import ExpertOperands, to_operands
from vllm_megamoe.method.gate_up import in_halves
from vllm_megamoe.method.pad_experts import pad_experts
from vllm_megamoe.method.quantise_experts import quantise_expert
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.use_cases import UseCase

Weights = list[Tensor] | Tensor
"""A matrix for each expert, or one stack of all."""


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """Operands of a layer as a call passes them; an absent kind is None."""

    l1: Weights
    l2: Weights
    l1_sf: Weights | None
    l2_sf: Weights | None
    l1_bias: Weights | None
    l2_bias: Weights | None


def convert_experts(w13: Tensor, w2: Tensor, plan: LayerPlan, *, interleaved: bool = False) -> LayerOperands:
    """BF16 (or float32) experts into operands of the plan's use case and sizes.

    At no time does more than one expert exist in an intermediate form.

    Args:
        w13: [E, 2I, H]. Where an operand has the same bytes as its source (A16W16, nothing padded) it moves into the
            source's memory, so that no second copy of a layer ever exists; the caller must drop its own view of it.
            A quantised or padded operand needs memory of its own beside the source until the caller drops that.
        w2: [E, H, I], likewise.
        plan: of the layer.
        interleaved: gate and up rows alternate.
    """
    keeps = plan.use_case is UseCase.A16W16 and not plan.padding
    found: list[ExpertOperands] = []
    for e in range(w13.shape[0]):
        gate_up = in_halves(w13[e]) if interleaved else w13[e]
        expert = quantise_expert(gate_up, w2[e], plan.use_case)
        expert = pad_experts(expert, plan.padding.hidden, plan.padding.intermediate_hidden)
        (operands,) = to_operands(expert, plan.use_case)
        if keeps:
            operands = ExpertOperands(_settle(operands.l1, w13[e]), _settle(operands.l2, w2[e]))
        found.append(operands)
    return _columns(found, plan.stacked)


def _settle(operand: Tensor, home: Tensor) -> Tensor:
    """Put an operand into the memory that its source held: same bytes, other shape."""
    place = home.view(operand.shape)
    place.copy_(operand)
    return place


def _columns(found: list[ExpertOperands], stacked: bool) -> LayerOperands:
    def column(name: str) -> Weights | None:
        values = [getattr(operands, name) for operands in found]
        if any(value is None for value in values):
            return None
        return stack_experts(values) if stacked else values

    return LayerOperands(**{field.name: column(field.name) for field in fields(LayerOperands)})  # type: ignore[arg-type]


def operand_bytes(operands: LayerOperands) -> int:
    """Bytes that a layer's operands hold, the blocks' padding included."""
    held = [getattr(operands, field.name) for field in fields(LayerOperands)]
    lists = [[weights] if isinstance(weights, Tensor) else weights for weights in held if weights is not None]
    return sum(inner(tensor).nbytes for tensors in lists for tensor in tensors)
