"""Experts -> the operands of a layer, one expert at a time: for serving, the command line and users of the operator.

    canonical experts  ->  kind of the use case  ->  padded  ->  laid out           ->  columns: a list or a stack
                           `steps.to_kind`           canonical   experts.operands       of all experts

At no time does more than one expert exist in a form between the first and the last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import CheckpointError, ConfigError, LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import ExpertOperands, LayerOperands, Weights, to_operands
from vllm_megamoe.experts.steps import to_kind
from vllm_megamoe.layout.cast import stack_experts
from vllm_megamoe.numerics.mx import GROUP
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


def convert(
    experts: Experts | Iterable[Experts],
    use_case: UseCase,
    *,
    hidden: int | None = None,
    intermediate_hidden: int | None = None,
    stacked: bool = False,
    dtype: torch.dtype | None = None,
) -> LayerOperands:
    """Operands of a use case.

    Args:
        experts: of a layer, or one part after the other as a checkpoint gives them; all of one kind and size.
        use_case: of the operands.
        hidden, intermediate_hidden: sizes of the operands, at least H and I; None for the experts' own. The rest is
            filled with zeros, which changes no result.
        stacked: one stack of all experts instead of a list with a tensor for each.
        dtype: as `steps.to_kind`.

    Raises:
        ConfigError: these experts cannot become operands of the use case.
        LayoutError: the experts differ in kind or size, there are none, or a size is smaller than their own.
    """
    found: list[ExpertOperands] = []
    first: Experts | None = None
    for part in [experts] if isinstance(experts, Experts) else experts:
        first = first or part
        if part.likeness != first.likeness:
            raise LayoutError(
                f"expert {len(found)} is {part.likeness}, expert 0 is {first.likeness}; expected experts of one "
                "kind and size. Convert the experts of each layer by themselves."
            )
        for e in range(part.num_experts):
            target = fitted(part.one(e), use_case, hidden, intermediate_hidden, dtype)
            found += to_operands(target, use_case)
    if first is None or not found:
        raise LayoutError(f"no experts for {use_case}; expected at least one. Pass the layer's experts.")
    columns = {field.name: _column(found, field.name, stacked) for field in fields(ExpertOperands)}
    return as_layer(columns, use_case, target.hidden, target.intermediate)


def fitted(
    experts: Experts,
    use_case: UseCase,
    hidden: int | None,
    intermediate_hidden: int | None,
    dtype: torch.dtype | None = None,
) -> Experts:
    """Experts of a use case's kind at these sizes, None for their own; the same object where nothing is to be done.

    `dtype` as `steps.to_kind`.

    Raises:
        ConfigError: no step leads there.
        LayoutError: a size is smaller than their own.
    """
    target = to_kind(experts, use_case, dtype)
    return target.padded(hidden or target.hidden, intermediate_hidden or target.intermediate)


def as_layer(
    columns: Mapping[str, Weights | None], use_case: UseCase, hidden: int, intermediate_hidden: int
) -> LayerOperands:
    """The fields of ExpertOperands, each of all experts, with what a call and its buffer are told about them."""
    facts = USE_CASES[use_case]
    # Rows travel in the type of FP8 weights (op tiling arch35); the table has the one that BF16 becomes.
    weights = columns["l1"]
    e5m2 = weights is not None and weights[0].dtype == torch.float8_e5m2
    return LayerOperands(
        **columns,  # type: ignore[arg-type]
        use_case=use_case,
        hidden=hidden,
        intermediate_hidden=intermediate_hidden,
        dispatch_quant_mode=facts.dispatch_quant_mode,
        dispatch_quant_out_dtype=AclDtype.FLOAT8_E5M2.code if e5m2 else facts.dispatch_quant_out_dtype,
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

    The given weights are left as they are. Every use case but a16w16 rounds them; experts that are
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


def in_halves(w13: Tensor) -> Tensor:
    """[..., 2I, H] with gate and up rows in turn -> gate rows first, then up rows; copies.

    gpt-oss writes its checkpoint so, and vLLM's loader leaves it so: its activation reads every other channel
    (vLLM 0.32, models/gpt_oss.py and MoEActivation.SWIGLUOAI). Every other model of vLLM's loads gate and up into
    halves already. The operator wants halves.
    """
    return torch.cat([w13[..., 0::2, :], w13[..., 1::2, :]], dim=-2)


def _column(found: list[ExpertOperands], name: str, stacked: bool) -> Weights | None:
    values = [getattr(operands, name) for operands in found]
    if values[0] is None:
        return None
    return stack_experts(values) if stacked else values


def cut_expert(whole: Experts, pieces: int) -> Experts:
    """One expert of width S -> `pieces` experts of width S / pieces whose outputs add up to its own.

    A shared MLP at the routed experts' width. Codes and scales are copied. Gate rows and up rows are cut separately;
    the second matrix is cut along its inputs, where a scale per channel holds for every piece, and one per 32 inputs
    goes with its group.

    Raises:
        CheckpointError: S is no multiple of `pieces`, or a cut would fall within a group of 32.
    """
    narrow, rest = divmod(whole.intermediate, pieces)
    if whole.num_experts != 1 or rest or (isinstance(whole, MxExperts) and pieces > 1 and narrow % GROUP):
        raise CheckpointError(
            f"shared experts of width {whole.intermediate} cut into {pieces}; expected a number that divides the "
            f"width, and for MX scales pieces whose width is a multiple of {GROUP}. Set "
            '"fuse_shared_experts": "off" in the megamoe options.'
        )
    if isinstance(whole, IntExperts):
        scale2 = whole.w2_scale.expand(pieces, -1).contiguous()
        codes13, scale13 = _rows(whole.w13, pieces), _rows(whole.w13_scale, pieces)
        return IntExperts(codes13, scale13, _columns(whole.w2, pieces), scale2, whole.bits)
    if isinstance(whole, MxExperts):
        codes13, scale13 = _rows(whole.w13, pieces), _rows(whole.w13_scale, pieces)
        return MxExperts(codes13, scale13, _columns(whole.w2, pieces), _columns(whole.w2_scale, pieces), whole.elem)
    return DenseExperts(_rows(whole.w13, pieces), _columns(whole.w2, pieces))


def _rows(first: Tensor, pieces: int) -> Tensor:
    """[1, 2S, ...] with gate rows first -> [pieces, 2S / pieces, ...]."""
    halves = first.view(2, pieces, -1, *first.shape[2:]).transpose(0, 1)
    return halves.reshape(pieces, -1, *first.shape[2:])


def _columns(second: Tensor, pieces: int) -> Tensor:
    """[1, H, X] -> [pieces, H, X / pieces]."""
    return second.view(second.shape[1], pieces, -1).transpose(0, 1).contiguous()
