"""One wide MLP as several narrow experts whose outputs add up to its own: a shared MLP at the routed experts' width.

Codes and scales are copied. Gate rows and up rows are cut separately; the second matrix is cut along its inputs, where
a scale per channel holds for every piece, and one per 32 inputs goes with its group.
"""

from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.numerics.mx import GROUP


def cut_expert(whole: Experts, pieces: int) -> Experts:
    """One expert of width S -> `pieces` experts of width S / pieces.

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
