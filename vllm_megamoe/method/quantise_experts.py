"""One BF16 expert -> the kind of experts that a use case computes with; lossy but for A16W16, so only by consent."""

from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layout.nibbles import pack_e2m1
from vllm_megamoe.numerics.int8 import quantise_weight
from vllm_megamoe.numerics.minifloat import Elem
from vllm_megamoe.numerics.mx import mx_quantise
from vllm_megamoe.profiles.use_cases import UseCase
from vllm_megamoe.weights import DenseExperts, Experts, IntExperts, MxExperts

MX_WEIGHTS: dict[UseCase, Elem] = {UseCase.A8W8_FP: "e4m3", UseCase.A8W4_FP: "e2m1", UseCase.A4W4_FP: "e2m1"}
"""Element type that BF16 weights become; E4M3 is what the buffers of A8W8-FP are made for."""


def quantise_expert(w13: Tensor, w2: Tensor, use_case: UseCase) -> Experts:
    """[2I, H], [H, I] in BF16 or float32 -> experts of one, for the use case.

    A16W16 keeps the memory. A8W8-INT: symmetric, per output channel, amax/127, half-even. The FP ones: groups of 32
    along the input, by the operator's own rule for activations (numerics.mx: the exponent of the group's largest
    magnitude, codes half-even and saturating).

    Raises:
        ConfigError: no conversion from BF16 leads to this use case; the plan refuses it too.
    """
    if use_case is UseCase.A16W16:
        return DenseExperts(w13[None], w2[None])
    if use_case is UseCase.A8W8_INT:
        q13, s13 = quantise_weight(w13.float())
        q2, s2 = quantise_weight(w2.float())
        return IntExperts(q13[None], s13[None], q2[None], s2[None], bits=8)
    if use_case not in MX_WEIGHTS:
        built = ", ".join([UseCase.A16W16, UseCase.A8W8_INT, *MX_WEIGHTS])
        raise ConfigError(f"no conversion from BF16 experts to {use_case}; wanted one of {built}. Change use_case.")
    elem = MX_WEIGHTS[use_case]
    q13, s13 = _mx(w13, elem)
    q2, s2 = _mx(w2, elem)
    return MxExperts(q13[None], s13[None], q2[None], s2[None], elem)


def _mx(w: Tensor, elem: Elem) -> tuple[Tensor, Tensor]:
    codes, scales = mx_quantise(w, elem)
    return (pack_e2m1(codes) if elem == "e2m1" else codes), scales
