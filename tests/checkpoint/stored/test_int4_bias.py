"""The `scale_bias` that msModelSlim stores beside INT4 codes: 8 times the sum of code times scale, and a check only."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.integers import MsInt4
from vllm_megamoe.checkpoint.stored.part import read_projection
from vllm_megamoe.errors import CheckpointError

N, K = 12, 64
WHERE = "model.layers.0.mlp.experts.3.gate_proj"


def stored() -> tuple[dict[str, Tensor], Tensor]:
    """A projection's tensors without the bias, and its codes. Channel 4 sums to 0 with large codes, channel 5 is 0."""
    codes = np.random.default_rng(0).integers(-8, 8, (N, K)).astype(np.int64)
    codes[4], codes[5] = np.tile([7, -7], K // 2), 0
    packed = ((codes[0::2] & 15) | (codes[1::2] & 15) << 4).astype(np.uint8)
    scale = torch.linspace(0.01, 0.12, N).view(N, 1)
    tensors = {"weight": torch.from_numpy(packed).view(torch.int8), "weight_scale": scale}
    return tensors, torch.from_numpy(codes)


def biases() -> Tensor:
    tensors, codes = stored()
    return (8 * codes.double() * tensors["weight_scale"].double()).sum(dim=1).float()


@pytest.mark.parametrize("slices", [1, 16])
@pytest.mark.parametrize("off", [0.0, 2.0**-9])
def test_what_the_tools_rounding_explains_is_taken(slices: int, off: float) -> None:
    """Whole or in slices; scales that were bfloat16 once are off by up to 2^-9 of themselves."""
    tensors, codes = stored()
    whole = biases() * (1 + off)
    tensors["scale_bias"] = (whole / slices).view(N, 1).repeat(1, slices)
    matrix = read_projection(MsInt4(), tensors, N, K, WHERE)
    assert matrix.codes.equal(codes.to(torch.int8))  # type: ignore[union-attr]


def test_a_small_error_of_a_sum_that_cancels_is_taken() -> None:
    """Channel 4: the sum is 0, its terms are not, so their roundings show."""
    tensors, _ = stored()
    bias = biases()
    # 2^-9 of 8 times the sum of magnitudes, half of what a bfloat16 scale explains.
    bias[4] += 2.0**-9 * 8 * 7 * K * float(tensors["weight_scale"][4])
    read_projection(MsInt4(), tensors | {"scale_bias": bias.view(N, 1)}, N, K, WHERE)


@pytest.mark.parametrize(("channel", "value"), [(2, 1e3), (4, 50.0), (5, 0.5), (7, float("nan")), (11, float("inf"))])
def test_one_that_belongs_to_other_codes_is_named(channel: int, value: float) -> None:
    tensors, _ = stored()
    bias = biases()
    bias[channel] = value
    with pytest.raises(CheckpointError, match=rf"{WHERE}.scale_bias is .* in channel {channel}; the codes and scales"):
        read_projection(MsInt4(), tensors | {"scale_bias": bias.view(N, 1)}, N, K, WHERE)
