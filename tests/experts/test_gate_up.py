"""Where gate and up rows lie, before and after."""

import torch

from vllm_megamoe.experts.convert import cut_mlp, in_halves


def test_b43_alternating_rows_become_halves() -> None:
    """gpt-oss: rows gate0, up0, gate1, up1, ..."""
    names = torch.tensor([[0, 100, 1, 101, 2, 102], [10, 110, 11, 111, 12, 112]]).view(2, 6, 1)
    assert in_halves(names)[:, :, 0].tolist() == [[0, 1, 2, 100, 101, 102], [10, 11, 12, 110, 111, 112]]


def test_pieces_of_an_mlp_add_up_to_it() -> None:
    """Small whole numbers: every sum is exact, so the order of adding does not matter."""
    g = torch.Generator().manual_seed(3)
    w13, w2, x = (torch.randint(-3, 4, shape, generator=g).float() for shape in ((12, 5), (5, 6), (7, 5)))
    experts = cut_mlp(w13, w2, 3)
    assert (tuple(experts.w13.shape), tuple(experts.w2.shape)) == ((3, 4, 5), (3, 5, 2))

    def mlp(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        gate, up = (x @ first.T).chunk(2, dim=1)
        return (gate.relu() * up) @ second.T

    assert sum(mlp(a, b) for a, b in zip(experts.w13, experts.w2, strict=True)).equal(mlp(w13, w2))  # type: ignore[union-attr]


def test_gate_rows_and_up_rows_are_cut_separately() -> None:
    """Cutting the fused rows in one go would pair the gate of a channel with the up of another."""
    rows = torch.arange(12.0).view(12, 1)
    experts = cut_mlp(rows, torch.zeros(1, 6), 2)
    assert experts.w13[:, :, 0].tolist() == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
