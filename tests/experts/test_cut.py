"""A wide MLP cut into narrow experts: what they add up to, and which scale goes with which piece."""

import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.convert import cut_expert

HIDDEN, WIDTH, PIECES = 64, 192, 3
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def dense(g: torch.Generator) -> Experts:
    shapes = ((1, 2 * WIDTH, HIDDEN), (1, HIDDEN, WIDTH))
    return DenseExperts(*(torch.randint(-3, 4, shape, generator=g).float() for shape in shapes))


def integers(g: torch.Generator) -> Experts:
    """Powers of two as scales, another one for each channel: every sum is exact."""
    codes = [torch.randint(-8, 8, s, generator=g).to(torch.int8) for s in ((1, 2 * WIDTH, HIDDEN), (1, HIDDEN, WIDTH))]
    scales = [torch.exp2(-torch.randint(0, 6, (1, code.shape[1]), generator=g).float()) for code in codes]
    return IntExperts(codes[0], scales[0], codes[1], scales[1], 4)


def mx(g: torch.Generator) -> Experts:
    def bytes_of(low: int, high: int, *shapes: tuple[int, ...]) -> list[Tensor]:
        return [torch.randint(low, high, shape, generator=g).to(torch.uint8) for shape in shapes]

    w13, w2 = bytes_of(0, 256, (1, 2 * WIDTH, HIDDEN // 2), (1, HIDDEN, WIDTH // 2))
    scale13, scale2 = bytes_of(124, 130, (1, 2 * WIDTH, HIDDEN // 32), (1, HIDDEN, WIDTH // 32))
    return MxExperts(w13, scale13, w2, scale2, "e2m1")


def values(experts: Experts) -> tuple[Tensor, Tensor]:
    """The numbers of both matrices, float64, by the formats' own definitions."""
    if isinstance(experts, DenseExperts):
        return experts.w13.double(), experts.w2.double()
    if isinstance(experts, IntExperts):
        return tuple(c.double() * s.double()[..., None] for c, s in pairs(experts))  # type: ignore[return-value]
    found = []
    for codes, scale in pairs(experts):
        nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()
        numbers = E2M1[nibbles & 7].double() * (1 - 2 * (nibbles >> 3).double())
        found.append(numbers * torch.exp2(scale.double() - 127).repeat_interleave(32, -1))
    return found[0], found[1]


def pairs(experts: IntExperts | MxExperts) -> list[tuple[Tensor, Tensor]]:
    return [(experts.w13, experts.w13_scale), (experts.w2, experts.w2_scale)]


def mlp(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    gate, up = (x @ first.T).chunk(2, dim=1)
    return (gate.relu() * up) @ second.T


@pytest.mark.parametrize("make", [dense, integers, mx])
def test_pieces_of_an_mlp_add_up_to_it(make: object) -> None:
    """On whole numbers: every sum is exact in float64, so the order of adding does not matter."""
    g = torch.Generator().manual_seed(3)
    whole = make(g)  # type: ignore[operator]
    cut = cut_expert(whole, PIECES)
    assert (cut.num_experts, cut.intermediate, cut.hidden, cut.kind) == (PIECES, WIDTH // PIECES, HIDDEN, whole.kind)
    x = torch.randint(-3, 4, (5, HIDDEN), generator=g).double()
    expected = mlp(x, *(matrix[0] for matrix in values(whole)))
    assert sum(mlp(x, a, b) for a, b in zip(*values(cut), strict=True)).equal(expected)  # type: ignore[union-attr]


def test_gate_rows_and_up_rows_are_cut_separately() -> None:
    """Cutting the fused rows in one go would pair the gate of a channel with the up of another."""
    rows = torch.arange(12.0).view(1, 12, 1)
    experts = cut_expert(DenseExperts(rows, torch.zeros(1, 1, 6)), 2)
    assert experts.w13[:, :, 0].tolist() == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


@pytest.mark.parametrize("pieces", [5, 4])
def test_a_cut_that_no_scale_can_follow_is_rejected(pieces: int) -> None:
    """192 is no multiple of 5; a quarter of it ends within a group of 32."""
    with pytest.raises(CheckpointError, match=f"width 192 cut into {pieces}"):
        cut_expert(mx(torch.Generator().manual_seed(1)), pieces)
