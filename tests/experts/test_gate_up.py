"""Where gate and up rows lie, before and after."""

import torch

from vllm_megamoe.experts.convert import in_halves


def test_b43_alternating_rows_become_halves() -> None:
    """gpt-oss: rows gate0, up0, gate1, up1, ..."""
    names = torch.tensor([[0, 100, 1, 101, 2, 102], [10, 110, 11, 111, 12, 112]]).view(2, 6, 1)
    assert in_halves(names)[:, :, 0].tolist() == [[0, 1, 2, 100, 101, 102], [10, 11, 12, 110, 111, 112]]
