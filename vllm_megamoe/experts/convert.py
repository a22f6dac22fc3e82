"""Experts -> the operands of a layer, one expert at a time: for serving, the command line and users of the operator.

    canonical experts  ->  kind of the use case  ->  padded  ->  laid out           ->  columns: a list or a stack
                           `to_kind`                 canonical   experts.operands       of all experts

A use case computes with experts of certain kinds (`operands.KINDS`). Those go in as they are, others need a step:

    exact    int4 -> int8    the same codes and scales; a code of 4 bits is one of 8
             e2m1 -> e4m3    the same scales; E4M3 has every value of E2M1
    lossy    dense -> int8, int4, e4m3, e2m1

Every other pair is an error: it would round what was rounded before. At no time does more than one expert exist in a
form between the first and the last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import ConfigError, LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, Kind, MxExperts
from vllm_megamoe.experts.operands import KINDS, ExpertOperands, LayerOperands, Weights, to_operands
from vllm_megamoe.layout.cast import stack_experts
from vllm_megamoe.layout.packing import pack_e2m1, unpack_e2m1
from vllm_megamoe.numerics.int8 import Bits, quantise_weight
from vllm_megamoe.numerics.mx import Elem, decode, encode, mx_quantise
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


def convert(
    experts: Experts | Iterable[Experts],
    use_case: UseCase,
    *,
    hidden: int | None = None,
    intermediate_hidden: int | None = None,
    stacked: bool = False,
) -> LayerOperands:
    """Operands of a use case.

    Args:
        experts: of a layer, or one part after the other as a checkpoint gives them; all of one kind and size.
        use_case: of the operands.
        hidden, intermediate_hidden: sizes of the operands, at least H and I; None for the experts' own. The rest is
            filled with zeros, which changes no result.
        stacked: one stack of all experts instead of a list with a tensor for each.

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
            target = fitted(part.one(e), use_case, hidden, intermediate_hidden)
            found += to_operands(target, use_case)
    if first is None or not found:
        raise LayoutError(f"no experts for {use_case}; expected at least one. Pass the layer's experts.")
    columns = {field.name: _column(found, field.name, stacked) for field in fields(ExpertOperands)}
    return as_layer(columns, use_case, target.hidden, target.intermediate)


def fitted(experts: Experts, use_case: UseCase, hidden: int | None, intermediate_hidden: int | None) -> Experts:
    """Experts of a use case's kind at these sizes, None for their own; the same object where nothing is to be done.

    Raises:
        ConfigError: no step leads there.
        LayoutError: a size is smaller than their own.
    """
    target = to_kind(experts, use_case)
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


def to_kind(experts: Experts, use_case: UseCase) -> Experts:
    """The experts as a use case computes with them: the same object, or one step further.

    Raises:
        ConfigError: no step leads there.
    """
    if experts.kind in KINDS[use_case]:
        return experts
    step = STEPS.get((experts.kind, KINDS[use_case][0]))
    if step is None:
        raise ConfigError(
            f"{experts.kind} experts cannot become {use_case}, which computes with {' or '.join(KINDS[use_case])}; "
            f"expected one of {', '.join(reachable(experts.kind))}. Choose one of these use cases, or start from BF16 "
            "weights."
        )
    return step(experts)


def reachable(kind: Kind) -> tuple[UseCase, ...]:
    """The use cases that experts of a kind can become."""
    return tuple(u for u in UseCase if kind in KINDS[u] or (kind, KINDS[u][0]) in STEPS)


def in_halves(w13: Tensor) -> Tensor:
    """[..., 2I, H] with gate and up rows in turn -> gate rows first, then up rows; copies.

    gpt-oss writes its checkpoint so, and vLLM's loader leaves it so: its activation reads every other channel
    (vLLM 0.32, models/gpt_oss.py and MoEActivation.SWIGLUOAI). Every other model of vLLM's loads gate and up into
    halves already. The operator wants halves.
    """
    return torch.cat([w13[..., 0::2, :], w13[..., 1::2, :]], dim=-2)


def _wider_codes(experts: Experts) -> Experts:
    assert isinstance(experts, IntExperts)
    return replace(experts, bits=8)


def _e2m1_as_e4m3(experts: Experts) -> Experts:
    assert isinstance(experts, MxExperts)
    w13, w2 = (encode(decode(unpack_e2m1(w), "e2m1"), "e4m3") for w in (experts.w13, experts.w2))
    return MxExperts(w13, experts.w13_scale, w2, experts.w2_scale, "e4m3")


def _to_int(bits: Bits) -> Callable[[Experts], Experts]:
    """Symmetric, per output channel: amax/127 (INT4: amax/7), half even (numerics.int8)."""

    def step(experts: Experts) -> Experts:
        w13, w2 = experts.w13, experts.w2
        q13, s13 = quantise_weight(w13.float().flatten(0, 1), bits)
        q2, s2 = quantise_weight(w2.float().flatten(0, 1), bits)
        return IntExperts(q13.view(w13.shape), s13.view(w13.shape[:2]), q2.view(w2.shape), s2.view(w2.shape[:2]), bits)

    return step


def _to_mx(elem: Elem) -> Callable[[Experts], Experts]:
    """Groups of 32 along the input, by the operator's own rule for activations.

    numerics.mx: the exponent of the group's largest magnitude, codes half even and saturating.
    """

    def codes(w: Tensor) -> tuple[Tensor, Tensor]:
        """[E, N, K] -> codes and scales, each with E and N in front."""
        codes, scales = mx_quantise(w.flatten(0, 1), elem)
        stored = pack_e2m1(codes) if elem == "e2m1" else codes
        return stored.view(*w.shape[:2], -1), scales.view(*w.shape[:2], -1)

    def step(experts: Experts) -> Experts:
        if elem == "e2m1":  # two codes share a byte
            experts = experts.padded(
                experts.hidden + experts.hidden % 2, experts.intermediate + experts.intermediate % 2
            )
        return MxExperts(*codes(experts.w13), *codes(experts.w2), elem)

    return step


STEPS: dict[tuple[Kind, Kind], Callable[[Experts], Experts]] = {
    ("int4", "int8"): _wider_codes,
    ("e2m1", "e4m3"): _e2m1_as_e4m3,
    ("dense", "int8"): _to_int(8),
    ("dense", "int4"): _to_int(4),
    ("dense", "e4m3"): _to_mx("e4m3"),
    ("dense", "e2m1"): _to_mx("e2m1"),
}


def _column(found: list[ExpertOperands], name: str, stacked: bool) -> Weights | None:
    values = [getattr(operands, name) for operands in found]
    if values[0] is None:
        return None
    return stack_experts(values) if stacked else values
