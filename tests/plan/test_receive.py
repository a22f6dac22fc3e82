"""Receive capacity: the bound by its formula, and shares of routers against the Beta distribution's own integral."""

import math
from itertools import pairwise

import pytest

from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.receive import DRAWS, fullest_shares, receive_of
from vllm_megamoe.profiles.sizes.common import GIB

EXPERTS, TOPK = 64, 6


def planned(profile: str = "a3@9.1", use_case: str = "a8w8-int", ranks: int = 16, **options: object) -> LayerPlan:
    engine = EngineFacts("bfloat16", data_parallel=ranks, expert_parallel=True, max_num_batched_tokens=512)
    layer = MoeFacts("layer", num_experts=EXPERTS, topk=TOPK, hidden=4096, intermediate_hidden=2048)
    given = Options(profile=profile, use_case=use_case, requant="allow", workspace_budget_gib=64.0, **options)
    return make_plan(engine, [layer], given).layers[0]


def test_the_bound_and_the_even_number() -> None:
    found = receive_of(planned(), 0)
    assert (found.rows, found.ranks) == (512, 16)
    assert found.smallest == 512 * 16 * min(6, 64 // 16)
    assert found.even == 512 * 6
    assert found.zero_is_enough


def test_b05_w4a8_of_9_1_on_a3_must_be_told_twice_the_bound() -> None:
    found = receive_of(planned(use_case="a8w4-int"), 0)
    assert found.smallest == 2 * 512 * 16 * 4
    assert not found.zero_is_enough


def test_b07_workspace_of_the_smallest_value() -> None:
    """recv * (2 * max(N, H) + 2 * max(H, I) + 8) bytes (failures.md, B07): N = 4096, H = 4096, I = 2048."""
    found = receive_of(planned(), 0)
    main = 512 * 16 * 4 * (2 * 4096 + 2 * 4096 + 8)
    assert main <= found.smallest_bytes < 1.05 * main + GIB / 64


def integral(a: float, b: float, upper: float) -> float:
    """Beta(a, b) from 0 to upper, by Simpson's rule on its density."""
    n = 4000
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    def density(x: float) -> float:
        return math.exp((a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_beta) if 0 < x < 1 else 0.0

    step = upper / n
    inner = sum((4 if i % 2 else 2) * density(i * step) for i in range(1, n))
    return step / 3 * (density(0.0) + inner + density(upper))


@pytest.mark.parametrize("evenness", [10.0, 1.0])
def test_two_ranks_follow_the_beta_distribution(evenness: float) -> None:
    """Of two ranks the fullest has at most s where the first has between 1 - s and s. Four standard deviations."""
    shares, a = fullest_shares(32, 2, evenness), 32 * evenness
    for share in (0.51, 0.53, 0.55):
        expected = integral(a, a, share) - integral(a, a, 1 - share)
        found = sum(one <= share for one in shares) / DRAWS
        assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / DRAWS) + 1e-9


def test_more_room_covers_more_and_the_bound_covers_all() -> None:
    layer = planned()
    values = (3072, 6144, 12288, 32768)
    covered = [[router.covered for router in receive_of(layer, value).routers] for value in values]
    assert all(a <= b for low, high in pairwise(covered) for a, b in zip(low, high, strict=True))
    assert covered[0] == [0.0, 0.0, 0.0]
    assert covered[-1] == [1.0, 1.0, 1.0]
    for router in receive_of(layer, 0).routers:
        assert router.covered is None
        (again,) = [one for one in receive_of(layer, router.enough).routers if one.evenness == router.evenness]
        assert again.covered is not None
        assert 0.99 <= again.covered < 0.995


def test_uneven_routers_fill_a_rank_more() -> None:
    fullest = [router.fullest for router in receive_of(planned(), 0).routers]
    assert fullest == sorted(fullest)
    assert 1.0 < fullest[0] < 1.5 < fullest[-1]
