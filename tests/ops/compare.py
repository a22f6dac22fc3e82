"""Run a case and hold the results against the oracle, token by token."""

import numpy as np
from ops.calls import Got, run_rank
from ops.operands import Form
from oracle.case import Case
from oracle.operator import Expected, expected

from vllm_megamoe.testing.ranks import World

# Bounds wider than this against a row's size would judge nothing. Most rows stay far below it; where a number may lie
# on either side of a power of two, a whole MX block may have either scale, and that token's bounds are wider.
WIDEST = 2.0**-7


def run(case: Case, form: Form | None = None, world: World | None = None) -> list[Got]:
    """Results of all ranks: in this process for one rank, else by a world."""
    form = form or Form()
    if len(case.ranks) == 1:
        return [run_rank(case, 0, form)]
    assert world is not None
    return world.run(run_rank, [(case, r, form) for r in range(world.size)])


def check(case: Case, form: Form | None = None, world: World | None = None) -> list[Got]:
    """Run and compare everything: y inside its bounds, counts and topk_ids equal."""
    got, expectation = run(case, form, world), expected(case)
    for r, (mine, want) in enumerate(zip(got, expectation, strict=True)):
        compare_rank(r, mine, want, case.full_float32)
    return got


def check_bits(case: Case, form: Form | None = None, world: World | None = None) -> list[Got]:
    """As `check`, for a case that leaves nothing open: the comparison is one of bits."""
    for want in expected(case):
        assert want.y.exact, "the oracle is not certain of every bit of this case"
        assert np.isfinite(want.y.lo).all()
    return check(case, form, world)


def compare_rank(r: int, got: Got, want: Expected, full_float32: bool = False, widest: float = WIDEST) -> None:
    """One rank's results against the oracle, whose bounds must be narrower than `widest` against a row's size."""
    assert got.dtype == ("torch.float32" if full_float32 else "torch.bfloat16")
    assert got.expert_token_nums.dtype == np.int32
    assert got.expert_token_nums.tolist() == want.expert_token_nums.tolist()
    assert got.topk_ids.tolist() == want.topk_ids.tolist()
    assert got.y.shape == want.y.shape
    size = np.linalg.norm(want.y.lo.astype(np.float64), axis=1) + 1e-300
    width = np.linalg.norm(want.y.hi.astype(np.float64) - want.y.lo, axis=1) / size
    assert np.median(width) <= widest, "the bounds are too wide to judge"
    assert width.max() <= 8 * widest, "the bounds of a token are too wide to judge"
    with np.errstate(invalid="ignore"):
        outside = np.fmax(want.y.lo - got.y, got.y - want.y.hi)
    outside = np.where(np.isnan(got.y), np.inf, np.maximum(outside, 0))
    if outside.any():
        token = int(np.argmax(np.linalg.norm(np.minimum(outside, 1e30), axis=1) / size))
        wrong = int((outside > 0).any(axis=1).sum())
        channel = int(np.argmax(outside[token]))
        low, high = want.y.lo[token, channel], want.y.hi[token, channel]
        raise AssertionError(
            f"rank {r}: {wrong} of {len(size)} tokens outside their bounds; worst is token {token}, "
            f"channel {channel}: {got.y[token, channel]!r}, expectation {low!r} to {high!r}; "
            f"{int((outside[token] > 0).sum())} of its {got.y.shape[1]} channels are wrong"
        )
