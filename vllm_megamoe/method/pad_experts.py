"""Experts padded with zeros to sizes that a product takes; exact, because a padded channel adds nothing anywhere.

Encodings: code 0 in every format (INT4: value 0, whose nibble the layout writes), scale 1.0 for integers, E8M0 byte 127
for MX groups: 0xFF would be NaN, and 0 times NaN is NaN.
"""

from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.numerics.mx import GROUP
from vllm_megamoe.weights import DenseExperts, Experts, IntExperts, MxExperts

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
