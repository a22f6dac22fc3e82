"""Stacked weights as vLLM loads them -> the operator's operands, one expert at a time."""

from dataclasses import dataclass

from torch import Tensor

from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.layout.operands import ExpertOperands, to_operands
from vllm_megamoe.numerics.int8 import quantise_weight
from vllm_megamoe.profiles.use_cases import UseCase
from vllm_megamoe.weights import DenseExperts, Experts, IntExperts


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """Operands of a layer in the operator's per-expert lists; an absent kind is None."""

    l1: list[Tensor]
    l2: list[Tensor]
    l1_sf: list[Tensor] | None
    l2_sf: list[Tensor] | None
    l1_bias: list[Tensor] | None
    l2_bias: list[Tensor] | None


def convert_dense(w13: Tensor, w2: Tensor, use_case: UseCase) -> LayerOperands:
    """BF16 (or float32) experts into operands.

    Args:
        w13: [E, 2I, H], gate rows first. Its storage is reused where an operand has the same size, so that no second
            copy of a layer ever exists; the caller must drop its own view of it.
        w2: [E, H, I], likewise.
        use_case: a16w16 keeps the values; a8w8-int quantises (symmetric, per output channel, amax/127, half-even).
    """
    found: list[ExpertOperands] = []
    for e in range(w13.shape[0]):
        expert: Experts = DenseExperts(w13[e : e + 1], w2[e : e + 1])
        if use_case is UseCase.A8W8_INT:
            expert = _quantise(w13[e], w2[e])
        (operands,) = to_operands(expert, use_case)
        if use_case is UseCase.A16W16:
            operands = ExpertOperands(_settle(operands.l1, w13[e]), _settle(operands.l2, w2[e]), None, None, None, None)
        found.append(operands)
    return _lists(found)


def _quantise(w13: Tensor, w2: Tensor) -> IntExperts:
    q13, s13 = quantise_weight(w13.float())
    q2, s2 = quantise_weight(w2.float())
    return IntExperts(q13[None], s13[None], q2[None], s2[None], bits=8)


def _settle(operand: Tensor, home: Tensor) -> Tensor:
    """Put an operand into the memory that its source held: same bytes, other shape."""
    place = home.view(operand.shape)
    place.copy_(operand)
    return place


def _lists(found: list[ExpertOperands]) -> LayerOperands:
    def column(name: str) -> list[Tensor] | None:
        values = [getattr(operands, name) for operands in found]
        return None if any(value is None for value in values) else values

    return LayerOperands(
        l1=[operands.l1 for operands in found],
        l2=[operands.l2 for operands in found],
        l1_sf=column("l1_sf"),
        l2_sf=column("l2_sf"),
        l1_bias=column("l1_bias"),
        l2_bias=column("l2_bias"),
    )


def operand_bytes(operands: LayerOperands) -> int:
    """Bytes that a layer's operands hold, the blocks' padding included."""
    lists = (operands.l1, operands.l2, operands.l1_sf, operands.l2_sf, operands.l1_bias, operands.l2_bias)
    return sum(inner(tensor).nbytes for tensors in lists if tensors for tensor in tensors)
