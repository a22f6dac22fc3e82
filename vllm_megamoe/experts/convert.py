"""Gate and up rows of a first matrix: alternating or in halves, and a wide MLP cut into narrow ones.

One BF16 expert -> the kind of experts that a use case computes with; lossy but for A16W16, so only by consent.

Experts padded with zeros to sizes that a product takes; exact, because a padded channel adds nothing anywhere.

Encodings: code 0 in every format (INT4: value 0, whose nibble the layout writes), scale 1.0 for integers, E8M0 byte 127
for MX groups: 0xFF would be NaN, and 0 times NaN is NaN.

Weights as vLLM loads them -> the operator's operands, one expert at a time, as the plan says.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import ExpertOperands, to_operands
from vllm_megamoe.layout.cast import stack_experts
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.layout.packing import pack_e2m1
from vllm_megamoe.numerics.int8 import quantise_weight
from vllm_megamoe.numerics.mx import GROUP, Elem, mx_quantise
from vllm_megamoe.profiles.use_cases import UseCase


def in_halves(w13: Tensor) -> Tensor:
    """[..., 2I, H] with gate and up rows in turn -> gate rows first, then up rows; copies.

    gpt-oss writes its checkpoint so, and vLLM's loader leaves it so: its activation reads every other channel
    (vLLM 0.32, models/gpt_oss.py and MoEActivation.SWIGLUOAI). Every other model of vLLM's loads gate and up into
    halves already. The operator wants halves.
    """
    return torch.cat([w13[..., 0::2, :], w13[..., 1::2, :]], dim=-2)


def cut_mlp(w13: Tensor, w2: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """One MLP [2S, H], [H, S] -> `pieces` experts [P, 2S/P, H], [P, H, S/P] whose outputs add up to its own.

    Gate rows and up rows are cut separately. S must be a multiple of `pieces`.
    """
    hidden, width = w2.shape
    narrow = width // pieces
    gate_up = w13.view(2, pieces, narrow, hidden).transpose(0, 1)
    down = w2.view(hidden, pieces, narrow).transpose(0, 1)
    return gate_up.reshape(pieces, 2 * narrow, hidden), down.contiguous()


MX_WEIGHTS: dict[UseCase, Elem] = {UseCase.A8W8_FP: "e4m3", UseCase.A8W4_FP: "e2m1", UseCase.A4W4_FP: "e2m1"}
"""Element type that BF16 weights become; E4M3 is what the buffers of A8W8-FP are made for."""


def quantise_expert(w13: Tensor, w2: Tensor, use_case: UseCase) -> Experts:
    """[2I, H], [H, I] in BF16 or float32 -> experts of one, for the use case.

    A16W16 keeps the memory. A8W8-INT: symmetric, per output channel, amax/127, half-even. The FP ones: groups of 32
    along the input, by the operator's own rule for activations (numerics.mx: the exponent of the group's largest
    magnitude, codes half-even and saturating).

    Raises:
        ConfigError: no conversion from BF16 leads to this use case; the plan rejects it too.
    """
    if use_case is UseCase.A16W16:
        return DenseExperts(w13[None], w2[None])
    if use_case is UseCase.A8W8_INT:
        q13, s13 = quantise_weight(w13.float())
        q2, s2 = quantise_weight(w2.float())
        return IntExperts(q13[None], s13[None], q2[None], s2[None], bits=8)
    if use_case not in MX_WEIGHTS:
        built = ", ".join([UseCase.A16W16, UseCase.A8W8_INT, *MX_WEIGHTS])
        raise ConfigError(f"no conversion from BF16 experts to {use_case}; expected one of {built}. Change use_case.")
    elem = MX_WEIGHTS[use_case]
    q13, s13 = _mx(w13, elem)
    q2, s2 = _mx(w2, elem)
    return MxExperts(q13[None], s13[None], q2[None], s2[None], elem)


def _mx(w: Tensor, elem: Elem) -> tuple[Tensor, Tensor]:
    codes, scales = mx_quantise(w, elem)
    return (pack_e2m1(codes) if elem == "e2m1" else codes), scales


ONE_E8M0 = 127


def pad_experts(experts: Experts, hidden: int, intermediate: int) -> Experts:
    """Experts of H and I -> of `hidden` and `intermediate`, both at least as large; new memory, or the same object.

    Gate and up rows are padded separately: rows behind the fused 2I would move the border between them.
    """
    if (experts.hidden, experts.intermediate) == (hidden, intermediate):
        return experts
    if isinstance(experts, DenseExperts):
        return DenseExperts(_gate_up(experts.w13, intermediate, hidden), _down(experts.w2, hidden, intermediate))
    if isinstance(experts, IntExperts):
        return IntExperts(
            _gate_up(experts.w13, intermediate, hidden),
            _gate_up(experts.w13_scale[:, :, None], intermediate, 1, 1.0)[:, :, 0],
            _down(experts.w2, hidden, intermediate),
            _down(experts.w2_scale[:, :, None], hidden, 1, 1.0)[:, :, 0],
            experts.bits,
        )
    per_byte = 2 if experts.elem == "e2m1" else 1
    return MxExperts(
        _gate_up(experts.w13, intermediate, hidden // per_byte),
        _gate_up(experts.w13_scale, intermediate, -(-hidden // GROUP), ONE_E8M0),
        _down(experts.w2, hidden, intermediate // per_byte),
        _down(experts.w2_scale, hidden, -(-intermediate // GROUP), ONE_E8M0),
        experts.elem,
    )


def _gate_up(t: Tensor, rows: int, columns: int, value: float = 0) -> Tensor:
    """[E, 2R, C] -> [E, 2 rows, columns], each half of the rows padded by itself."""
    halves = t.view(t.shape[0], 2, t.shape[1] // 2, t.shape[2])
    return _down(halves, rows, columns, value).flatten(1, 2)


def _down(t: Tensor, rows: int, columns: int, value: float = 0) -> Tensor:
    """[..., R, C] -> [..., rows, columns]."""
    return pad(t, (0, columns - t.shape[-1], 0, rows - t.shape[-2]), value=value)


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


def convert_experts(
    w13: Tensor,
    w2: Tensor,
    use_case: UseCase,
    *,
    hidden: int,
    intermediate_hidden: int,
    stacked: bool = False,
    interleaved: bool = False,
) -> LayerOperands:
    """BF16 (or float32) experts into operands of a use case, padded with zeros to the sizes that a product takes.

    At no time does more than one expert exist in an intermediate form.

    Args:
        w13: [E, 2I, H]. Where an operand has the same bytes as its source (A16W16, nothing padded) it moves into the
            source's memory, so that no second copy of a layer ever exists; the caller must drop its own view of it.
            A quantised or padded operand needs memory of its own beside the source until the caller drops that.
        w2: [E, H, I], likewise.
        use_case: of the operands.
        hidden, intermediate_hidden: sizes of the operands, at least H and I.
        stacked: one stack of all experts instead of a list with a tensor for each.
        interleaved: gate and up rows alternate.
    """
    keeps = use_case is UseCase.A16W16 and w2.shape[1:] == (hidden, intermediate_hidden)
    found: list[ExpertOperands] = []
    for e in range(w13.shape[0]):
        gate_up = in_halves(w13[e]) if interleaved else w13[e]
        expert = pad_experts(quantise_expert(gate_up, w2[e], use_case), hidden, intermediate_hidden)
        (operands,) = to_operands(expert, use_case)
        if keeps:
            operands = ExpertOperands(_settle(operands.l1, w13[e]), _settle(operands.l2, w2[e]))
        found.append(operands)
    return _columns(found, stacked)


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
