"""Steps between kinds of experts: what a use case computes with, from what a checkpoint holds.

A use case computes with experts of certain kinds (`operands.KINDS`). Those go in as they are, others need a step:

    exact    int4 -> int8            the same codes and scales; a code of 4 bits is one of 8
             e2m1 -> e4m3            the same scales; E4M3 has every value of E2M1
             e4m3, e2m1 -> dense     BF16 has every value of both with 2^-117 to 2^119 and 2^-125 to 2^125 as scales
    lossy    dense -> int8, int4, e4m3, e2m1
             int8, int4 -> dense, e4m3
             e4m3, e2m1 -> int8

What is lossy, and how much, stands in `profiles.losses`; who consents is the plan's business. Every other pair is an
error.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, Kind, MxExperts
from vllm_megamoe.experts.operands import KINDS
from vllm_megamoe.layout.packing import pack_e2m1, unpack_e2m1
from vllm_megamoe.numerics.int8 import Bits, quantise_weight
from vllm_megamoe.numerics.mx import Elem, MxScale, decode, encode, mx_dequantise_bytes, mx_quantise
from vllm_megamoe.profiles.use_cases import UseCase


def to_kind(experts: Experts, use_case: UseCase, dtype: torch.dtype | None = None) -> Experts:
    """The experts as a use case computes with them: the same object, or one step further.

    Args:
        dtype: of A16W16's weights, that of the model: bfloat16, or float32 in the twin. None leaves dense experts as
            they are and makes bfloat16 of others.

    Raises:
        ConfigError: no step leads there.
    """
    if experts.kind not in KINDS[use_case]:
        step = STEPS.get((experts.kind, KINDS[use_case][0]))
        if step is None:
            raise ConfigError(
                f"{experts.kind} experts cannot become {use_case}, which computes with "
                f"{' or '.join(KINDS[use_case])}; expected one of {', '.join(reachable(experts.kind))}. Choose one of "
                "these use cases, or start from BF16 weights."
            )
        # A quantised source gives float32 here, which is not rounded twice.
        experts, dtype = step(experts), dtype or torch.bfloat16
    if use_case is not UseCase.A16W16 or not isinstance(experts, DenseExperts) or dtype in (None, experts.w13.dtype):
        return experts
    return DenseExperts(experts.w13.to(dtype), experts.w2.to(dtype))


def reachable(kind: Kind) -> tuple[UseCase, ...]:
    """The use cases that experts of a kind can become."""
    return tuple(u for u in UseCase if kind in KINDS[u] or (kind, KINDS[u][0]) in STEPS)


def _values(experts: Experts) -> DenseExperts:
    """The numbers in float32: exact for MX, one rounding of code times scale for integers."""
    if isinstance(experts, DenseExperts):
        return DenseExperts(experts.w13.float(), experts.w2.float())
    if isinstance(experts, IntExperts):
        pairs = ((experts.w13, experts.w13_scale), (experts.w2, experts.w2_scale))
        return DenseExperts(*(codes.float() * scale[..., None] for codes, scale in pairs))
    w13 = mx_dequantise_bytes(experts.w13, experts.w13_scale, experts.elem)
    return DenseExperts(w13, mx_dequantise_bytes(experts.w2, experts.w2_scale, experts.elem))


def _wider_codes(experts: Experts) -> Experts:
    assert isinstance(experts, IntExperts)
    return IntExperts(experts.w13, experts.w13_scale, experts.w2, experts.w2_scale, 8)


def _e2m1_as_e4m3(experts: Experts) -> Experts:
    assert isinstance(experts, MxExperts)
    w13, w2 = (encode(decode(unpack_e2m1(w), "e2m1"), "e4m3") for w in (experts.w13, experts.w2))
    return MxExperts(w13, experts.w13_scale, w2, experts.w2_scale, "e4m3")


def _to_int(bits: Bits) -> Callable[[Experts], Experts]:
    """Symmetric, per output channel: amax/127 (INT4: amax/7), half even (numerics.int8)."""

    def step(experts: Experts) -> Experts:
        values = _values(experts)
        w13, w2 = values.w13, values.w2
        q13, s13 = quantise_weight(w13.flatten(0, 1), bits)
        q2, s2 = quantise_weight(w2.flatten(0, 1), bits)
        return IntExperts(q13.view(w13.shape), s13.view(w13.shape[:2]), q2.view(w2.shape), s2.view(w2.shape[:2]), bits)

    return step


def to_mx(elem: Elem, scale: MxScale = "floor") -> Callable[[Experts], Experts]:
    """Groups of 32 along the input, by the operator's own rule for activations; `ceil` for weights that never saturate.

    numerics.mx: the exponent of the group's largest magnitude, codes half even and saturating. What is no BF16 is not
    made one first, as the kernel does with activations: that would round twice.
    """

    def codes(w: Tensor) -> tuple[Tensor, Tensor]:
        """[E, N, K] -> codes and scales, each with E and N in front."""
        codes, scales = mx_quantise(w.flatten(0, 1), elem, "kernel" if w.dtype == torch.bfloat16 else "spec", scale)
        stored = pack_e2m1(codes) if elem == "e2m1" else codes
        return stored.view(*w.shape[:2], -1), scales.view(*w.shape[:2], -1)

    def step(experts: Experts) -> Experts:
        experts = experts if isinstance(experts, DenseExperts) else _values(experts)
        if elem == "e2m1":  # two codes share a byte
            experts = experts.padded(
                experts.hidden + experts.hidden % 2, experts.intermediate + experts.intermediate % 2
            )
        return MxExperts(*codes(experts.w13), *codes(experts.w2), elem)

    return step


STEPS: dict[tuple[Kind, Kind], Callable[[Experts], Experts]] = {
    ("int4", "int8"): _wider_codes,
    ("e2m1", "e4m3"): _e2m1_as_e4m3,
    **{(kind, "dense"): _values for kind in ("int8", "int4", "e4m3", "e2m1")},
    **{(kind, "int8"): _to_int(8) for kind in ("dense", "e4m3", "e2m1")},
    **{(kind, "e4m3"): to_mx("e4m3") for kind in ("dense", "int8", "int4")},
    ("dense", "int4"): _to_int(4),
    ("dense", "e2m1"): to_mx("e2m1"),
}
