"""A8W4-INT: the order in which the split product is put together, (16 high + low) + bias, then times the token's scale.

With the usual bias the last rounding to bf16 hides the order. Here the bias cancels all but a few units in the last
place of 16 high + low, so any other order, or a product before the sum, changes what is left by a tenth and more.
"""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check_bits
from ops.operands import Form
from oracle import formats, quantisers
from oracle.case import Case, Integer
from oracle.interval import F32
from oracle.make import Shape, make_case


def _before_the_bias(q: F32, weight: np.ndarray, scale: F32) -> F32:
    """fl(16 high + low), [N]."""
    parts = [formats.to_fp16(np.float32(part @ weight.T.astype(np.int64)) * scale) for part in _split(q)]
    return np.float32(16) * parts[0] + parts[1]


def _split(q: F32) -> list[np.ndarray]:
    return [part.astype(np.int64) for part in quantisers.split_msd(q.astype(np.int8))]


def _cancelling(seed: int) -> Case:
    """One token whose up channels are 1 to 12 units in the last place of the sum before the bias."""
    case = make_case("a8w4-int", Shape(tokens=(1,), experts=1, topk=1), seed=seed)
    experts = case.experts
    assert isinstance(experts, Integer)
    rng = np.random.default_rng(seed)
    full = np.float32(rng.uniform(1, 2, experts.s13.shape)) * experts.s13  # scales of 24 bits, so that low is not short
    q, _ = quantisers.quantise_tokens(case.ranks[0].x, "kernel")
    sums = _before_the_bias(q.lo[0], experts.w13[0], full[0])
    b13 = replace(experts, s13=full).biases()[0].copy()
    left = np.float32(rng.integers(1, 13, 64)) * np.spacing(np.abs(sums[64:]))
    b13[0, 64:] = left - sums[64:]
    return replace(case, experts=replace(experts, s13=full, b13=b13))


@pytest.mark.parametrize("seed", range(4))
def test_what_the_bias_leaves(seed: int) -> None:
    check_bits(_cancelling(seed), Form(blocks=True))
