"""Experts -> the operands of a layer, one expert at a time: for serving, the command line and users of the operator.

    canonical experts  ->  kind of the use case  ->  padded  ->  laid out  ->  columns: a list or a stack of all
                           experts.kinds             canonical   experts.operands

At no time does more than one expert exist in a form between the first and the last. How weights of a checkpoint or of
vLLM become canonical is told by those who read them; two shapes that need more than a view are here (`in_halves`,
`cut_mlp`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import ConfigError, LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.kinds import to_kind
from vllm_megamoe.experts.operands import ExpertOperands, to_operands
from vllm_megamoe.layout.cast import stack_experts
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

Weights = list[Tensor] | Tensor
"""A matrix for each expert, or one stack of all."""


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """The experts of a layer as a call passes them, and what the buffer and the call must be told about them.

    Attributes:
        l1, l2: weights of the two GEMMs.
        l1_sf, l2_sf: their scales, None for BF16.
        l1_bias, l2_bias: compensation of the INT4 split, None for other weights.
        use_case: what they are operands of.
        hidden, intermediate_hidden: H and I, padding included.
        dispatch_quant_mode, dispatch_quant_out_dtype: what the buffer must be made with.
        weight_type: what the call must say of both weights, None where their dtype says it.
    """

    l1: Weights
    l2: Weights
    l1_sf: Weights | None
    l2_sf: Weights | None
    l1_bias: Weights | None
    l2_bias: Weights | None
    use_case: UseCase
    hidden: int
    intermediate_hidden: int
    dispatch_quant_mode: int
    dispatch_quant_out_dtype: int | None
    weight_type: int | None

    def buffer_arguments(self) -> dict[str, Any]:
        """What `get_symm_buffer_for_mega_moe` has to be told of these weights, as its keyword arguments."""
        return {
            "hidden": self.hidden,
            "intermediate_hidden": self.intermediate_hidden,
            "dispatch_quant_mode": self.dispatch_quant_mode,
            "dispatch_quant_out_dtype": self.dispatch_quant_out_dtype,
        }

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `mega_moe`, weight types included; those that do not apply are None, its default."""
        return {
            "l1_weights": self.l1,
            "l2_weights": self.l2,
            "l1_weights_sf": self.l1_sf,
            "l2_weights_sf": self.l2_sf,
            "l1_bias": self.l1_bias,
            "l2_bias": self.l2_bias,
            "weight1_type": self.weight_type,
            "weight2_type": self.weight_type,
        }

    def shared_arguments(self) -> dict[str, Any]:
        """The same where these are the shared experts of a call, which take no bias (operator_readme.txt, sharedBias1).

        So the operator has no INT4 shared experts, and rejects them.
        """
        return {f"shared_{name}": value for name, value in self.arguments().items() if not name.endswith("_bias")}


def convert(
    experts: Experts | Iterable[Experts],
    use_case: UseCase,
    *,
    hidden: int | None = None,
    intermediate_hidden: int | None = None,
    stacked: bool = False,
    in_place: bool = False,
) -> LayerOperands:
    """Operands of a use case.

    Exact: dense experts to A16W16, INT8 to A8W8-INT, INT4 to A8W4-INT and A8W8-INT, E4M3 and E5M2 to A8W8-FP, E2M1 to
    A8W4-FP, A4W4-FP and A8W8-FP. Lossy: dense experts to all others, by the quantisers of `experts.kinds`.

    Args:
        experts: of a layer, or one after the other as a checkpoint gives them; all of one kind and size.
        use_case: of the operands.
        hidden, intermediate_hidden: sizes of the operands, at least H and I; None for the experts' own. The rest is
            filled with zeros, which changes no result.
        stacked: one stack of all experts instead of a list with a tensor for each.
        in_place: an operand with the same bytes as its source (A16W16, nothing padded) moves into the source's memory,
            so that no second copy of a layer ever exists; the caller must drop its own view of the experts.

    Raises:
        ConfigError: these experts cannot become operands of the use case.
        LayoutError: the experts differ in kind or size, there are none, or a size is smaller than their own.
    """
    found: list[ExpertOperands] = []
    first: Experts | None = None
    for expert in _one_by_one(experts):
        first = _same_kind(first, expert, len(found))
        target = to_kind(expert, use_case).padded(hidden or expert.hidden, intermediate_hidden or expert.intermediate)
        (operands,) = to_operands(target, use_case)
        if in_place and target is expert and isinstance(expert, DenseExperts):
            operands = ExpertOperands(_settle(operands.l1, expert.w13), _settle(operands.l2, expert.w2))
        found.append(operands)
    if first is None:
        raise LayoutError(f"no experts for {use_case}; expected at least one. Pass the layer's experts.")
    facts = USE_CASES[use_case]
    out_dtype = facts.dispatch_quant_out_dtype
    if isinstance(first, MxExperts) and first.elem == "e5m2":
        # Rows travel in the type of FP8 weights (op tiling arch35).
        out_dtype = AclDtype.FLOAT8_E5M2.code
    return LayerOperands(
        **{field.name: _column(found, field.name, stacked) for field in fields(ExpertOperands)},  # type: ignore[arg-type]
        use_case=use_case,
        hidden=hidden or first.hidden,
        intermediate_hidden=intermediate_hidden or first.intermediate,
        dispatch_quant_mode=facts.dispatch_quant_mode,
        dispatch_quant_out_dtype=out_dtype,
        weight_type=facts.weight_type,
    )


def transform_weights_for_mega_moe(
    w13: Sequence[Tensor] | Tensor,
    w2: Sequence[Tensor] | Tensor,
    use_case: UseCase | str,
    *,
    hidden: int | None = None,
    intermediate_hidden: int | None = None,
    stacked: bool = False,
) -> LayerOperands:
    """Plain BF16 weights of a rank's experts -> operands of any use case; allocate, transform, call.

        operands = transform_weights_for_mega_moe(w13, w2, "a8w4-int")
        buffer = get_symm_buffer_for_mega_moe(group, num_experts, tokens, topk, **operands.buffer_arguments())
        y, expert_token_nums = mega_moe(x, topk_ids, topk_weights, sym_buffer=buffer, **operands.arguments())

    The given weights are left as they are. Every use case but a16w16 rounds them (`experts.kinds`); experts that are
    quantised already go through `experts.convert.convert`, exactly.

    Args:
        w13: [E, 2I, H] or a list of [2I, H], gate rows first, then up rows, as [out, in] of a linear layer; bfloat16,
            or float32 for the twin.
        w2: [E, H, I] or a list of [H, I].
        use_case: a16w16, a8w8-int, a8w4-int, a8w8-fp, a8w4-fp or a4w4-fp.
        hidden, intermediate_hidden, stacked: as `convert`.

    Raises:
        ConfigError: no such use case.
        CheckpointError: a shape or dtype does not fit.
        LayoutError: as `convert`.
    """
    names = [u.value for u in UseCase]
    if use_case not in names:
        raise ConfigError(f"use_case={use_case!r}; expected one of {', '.join(names)}. Choose one of them.")
    if len(w13) != len(w2):
        raise LayoutError(f"w13 has {len(w13)} experts, w2 has {len(w2)}; expected the same number. Pass both whole.")
    experts = (DenseExperts(a[None], b[None]) for a, b in zip(w13, w2, strict=True))
    return convert(experts, UseCase(use_case), hidden=hidden, intermediate_hidden=intermediate_hidden, stacked=stacked)


def operand_bytes(operands: LayerOperands) -> int:
    """Bytes that a layer's operands hold, the blocks' padding included."""
    held = [getattr(operands, field.name) for field in fields(ExpertOperands)]
    lists = [[weights] if isinstance(weights, Tensor) else weights for weights in held if weights is not None]
    return sum(inner(tensor).nbytes for tensors in lists for tensor in tensors)


def in_halves(w13: Tensor) -> Tensor:
    """[..., 2I, H] with gate and up rows in turn -> gate rows first, then up rows; copies.

    gpt-oss writes its checkpoint so, and vLLM's loader leaves it so: its activation reads every other channel
    (vLLM 0.32, models/gpt_oss.py and MoEActivation.SWIGLUOAI). Every other model of vLLM's loads gate and up into
    halves already. The operator wants halves.
    """
    return torch.cat([w13[..., 0::2, :], w13[..., 1::2, :]], dim=-2)


def cut_mlp(w13: Tensor, w2: Tensor, pieces: int) -> DenseExperts:
    """One MLP [2S, H], [H, S] -> `pieces` experts of width S / pieces whose outputs add up to its own.

    Gate rows and up rows are cut separately. S must be a multiple of `pieces`.
    """
    hidden, width = w2.shape
    narrow = width // pieces
    gate_up = w13.view(2, pieces, narrow, hidden).transpose(0, 1)
    down = w2.view(hidden, pieces, narrow).transpose(0, 1)
    return DenseExperts(gate_up.reshape(pieces, 2 * narrow, hidden), down.contiguous())


def _one_by_one(experts: Experts | Iterable[Experts]) -> Iterator[Experts]:
    given = [experts] if isinstance(experts, Experts) else experts
    return chain.from_iterable((e.one(n) for n in range(e.num_experts)) for e in given)


def _same_kind(first: Experts | None, expert: Experts, number: int) -> Experts:
    """The first expert, after a look whether this one is like it."""
    if first is None:
        return expert
    here, there = _likeness(first), _likeness(expert)
    if here != there:
        raise LayoutError(
            f"expert {number} is {there}, expert 0 is {here}; expected experts of one kind and size. "
            "Convert the experts of each layer by themselves."
        )
    return first


def _likeness(experts: Experts) -> str:
    match experts:
        case DenseExperts():
            kind = str(experts.w13.dtype).removeprefix("torch.")
        case IntExperts():
            kind = f"int{experts.bits}"
        case MxExperts():
            kind = experts.elem
    return f"{kind} of hidden {experts.hidden} and intermediate_hidden {experts.intermediate}"


def _settle(operand: Tensor, home: Tensor) -> Tensor:
    """Put an operand into the memory that its source held: same bytes, other shape."""
    place = home.view(operand.shape)
    place.copy_(operand)
    return place


def _column(found: list[ExpertOperands], name: str, stacked: bool) -> Weights | None:
    values = [getattr(operands, name) for operands in found]
    if values[0] is None:
        return None
    return stack_experts(values) if stacked else values
