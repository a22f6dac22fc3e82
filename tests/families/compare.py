"""How far apart two float32 computations of the same model may be, and whether two runs are within it.

The bound. Two correct paths differ in the order of their float32 sums only. A rounding to float32 moves a value by at
most u = 2^-24 of itself, u / sqrt(3) root-mean-square. In a sum of K products with independent random weights the
partial sums grow as sqrt(i), so its K roundings move the result by u / sqrt(3) * sqrt(sum of i) = u * sqrt(K / 6) times
its size. R such sums, each in both paths, move the final hidden state by u * sqrt(2 * R * K / 6) of its size. Logits
are sums of products with independent random weights, so each moves by that times the standard deviation of the logits,
here 1; a log-probability is a logit less a log-sum that moves no more than the logits do, hence the factor sqrt(2).
Six standard deviations leave two in a billion; a comparison looks at some thousand values.
"""

import math

from torch import Tensor

U = 2.0**-24
K = 1024
# Per layer: five projections and two products of attention, router, both GEMMs of the routed and of the shared experts.
SUMS_PER_LAYER = 5 + 2 + 1 + 2 + 2
LAYERS = 3
FINAL = 1  # logits
LOGIT_STD = 1.1  # with weights of the last norm of 1.0 and 0.1
BOUND = 6 * math.sqrt(2) * U * math.sqrt(2 * (LAYERS * SUMS_PER_LAYER + FINAL) * K / 6) * LOGIT_STD


def check(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Fail when tokens differ, or a log-probability differs by more than the bound."""
    check_rows(expected["prompt"], found["prompt"])
    assert found["tokens"].equal(expected["tokens"]), f"limit: tokens {found['tokens']}, not {expected['tokens']}"
    check_rows(expected["new"], found["new"])


def check_rows(expected: Tensor, found: Tensor) -> None:
    """The same for log-probabilities [rows, vocabulary]."""
    assert found.shape == expected.shape
    difference = (found - expected).abs().amax(dim=1)
    worst = int(difference.argmax())
    assert bool(difference[worst] <= BOUND), f"row {worst}: {float(difference[worst]):.2e} (limit {BOUND:.1e})"
