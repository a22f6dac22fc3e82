"""Kinds of experts, and the steps between them: exact ones, and the quantisers of BF16.

A use case computes with experts of one kind. Experts of that kind go in as they are, others need a step:

    exact    int4 -> int8    the same codes and scales; a code of 4 bits is one of 8
             e2m1 -> e4m3    the same scales; E4M3 has every value of E2M1
    lossy    dense -> int8, int4, e4m3, e2m1

Every other pair is an error: it would round what was rounded before.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.layout.packing import pack_e2m1, unpack_e2m1
from vllm_megamoe.numerics.int8 import Bits, quantise_weight
from vllm_megamoe.numerics.mx import Elem, decode, encode, mx_quantise
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

Kind = Literal["dense", "int8", "int4", "e4m3", "e5m2", "e2m1"]

# By family and bits of a use case. Steps lead to the first kind: the buffers of A8W8-FP are made for E4M3.
_KINDS: dict[tuple[str, int], tuple[Kind, ...]] = {
    ("dense", 16): ("dense",),
    ("int", 8): ("int8",),
    ("int", 4): ("int4",),
    ("mx", 8): ("e4m3", "e5m2"),
    ("mx", 4): ("e2m1",),
}


def kinds_of(use_case: UseCase) -> tuple[Kind, ...]:
    """The kinds that a use case computes with; the first one is what other experts become for it."""
    facts = USE_CASES[use_case]
    return _KINDS[facts.family, facts.weight_bits]


def kind_of(experts: Experts) -> Kind:
    """The kind of these experts."""
    match experts:
        case DenseExperts():
            return "dense"
        case IntExperts():
            return "int4" if experts.bits == 4 else "int8"
        case MxExperts():
            return experts.elem


def reachable(kind: Kind) -> tuple[UseCase, ...]:
    """The use cases that experts of a kind can be converted to."""
    return tuple(u for u in UseCase if kind in kinds_of(u) or (kind, kinds_of(u)[0]) in STEPS)


def to_kind(experts: Experts, use_case: UseCase) -> Experts:
    """The experts as a use case computes with them: the same object, or one step further.

    Raises:
        ConfigError: no step leads there.
    """
    kind, kinds = kind_of(experts), kinds_of(use_case)
    if kind in kinds:
        return experts
    step = STEPS.get((kind, kinds[0]))
    if step is None:
        possible = ", ".join(reachable(kind))
        raise ConfigError(
            f"{kind} experts cannot become {use_case}, which computes with {' or '.join(kinds)}; expected one of "
            f"{possible}. Choose one of these use cases, or start from BF16 weights."
        )
    return step(experts)


def _wider_codes(experts: Experts) -> Experts:
    assert isinstance(experts, IntExperts)
    return replace(experts, bits=8)


def _e2m1_as_e4m3(experts: Experts) -> Experts:
    assert isinstance(experts, MxExperts)
    w13, w2 = (encode(decode(unpack_e2m1(w), "e2m1"), "e4m3") for w in (experts.w13, experts.w2))
    return MxExperts(w13, experts.w13_scale, w2, experts.w2_scale, "e4m3")


def _quantise_int(bits: Bits) -> Callable[[Experts], Experts]:
    """Symmetric, per output channel: amax/127 (INT4: amax/7), half even (numerics.int8)."""

    def step(experts: Experts) -> Experts:
        assert isinstance(experts, DenseExperts)
        (q13, s13), (q2, s2) = (_per_expert(w, lambda one: quantise_weight(one.float(), bits)) for w in _pair(experts))
        return IntExperts(q13, s13, q2, s2, bits)

    return step


def _quantise_mx(elem: Elem) -> Callable[[Experts], Experts]:
    """Groups of 32 along the input, by the operator's own rule for activations.

    numerics.mx: the exponent of the group's largest magnitude, codes half even and saturating.
    """

    def quantise(one: Tensor) -> tuple[Tensor, Tensor]:
        codes, scales = mx_quantise(one, elem)
        return (pack_e2m1(codes) if elem == "e2m1" else codes), scales

    def step(experts: Experts) -> Experts:
        assert isinstance(experts, DenseExperts)
        if elem == "e2m1":  # two codes share a byte
            experts = experts.padded(
                experts.hidden + experts.hidden % 2, experts.intermediate + experts.intermediate % 2
            )
        (q13, s13), (q2, s2) = (_per_expert(w, quantise) for w in _pair(experts))
        return MxExperts(q13, s13, q2, s2, elem)

    return step


def _pair(experts: DenseExperts) -> tuple[Tensor, Tensor]:
    return experts.w13, experts.w2


def _per_expert(w: Tensor, quantise: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """[E, N, K] -> codes and scales, each with E in front."""
    codes, scales = zip(*(quantise(one) for one in w.unbind()), strict=True)
    return torch.stack(codes), torch.stack(scales)


STEPS: dict[tuple[Kind, Kind], Callable[[Experts], Experts]] = {
    ("int4", "int8"): _wider_codes,
    ("e2m1", "e4m3"): _e2m1_as_e4m3,
    ("dense", "int8"): _quantise_int(8),
    ("dense", "int4"): _quantise_int(4),
    ("dense", "e4m3"): _quantise_mx("e4m3"),
    ("dense", "e2m1"): _quantise_mx("e2m1"),
}
