"""Bounds of a step: each term against numbers that are counted by hand or by drawing, never by the code itself."""

import itertools
import random

import pytest

from vllm_megamoe.plan.bounds import (
    Work,
    all_reduce_bytes,
    bound_of,
    decode,
    fullest_rank,
    prefill,
    router_shares,
    touched,
)
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.fit import Checkpoint, Serving, fit
from vllm_megamoe.plan.model import read_model
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_of
from vllm_megamoe.plan.step_work import step_work
from vllm_megamoe.plan.whole.model import read_whole
from vllm_megamoe.profiles.devices import GB, TERA, Device


@pytest.mark.parametrize(("experts", "topk"), list(itertools.product([8, 128, 896], [1, 4, 8])))
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_shares_are_a_routers(experts: int, topk: int, skew: float) -> None:
    shares = router_shares(experts, topk, skew)
    assert sum(shares) == pytest.approx(topk)
    assert max(shares) <= 1.0
    assert shares == sorted(shares, reverse=True)
    below = [share for share in shares if share < 1.0]
    certain = len(shares) - len(below)
    for place, share in enumerate(below):  # those that are not capped follow the law
        assert share / below[0] == pytest.approx(((certain + place + 1) / (certain + 1)) ** -skew)
    if skew == 0.0:
        assert shares == pytest.approx([topk / experts] * experts)


def test_touched_is_what_drawing_gives() -> None:
    """An even router's tokens choose topk distinct experts; drawn 4000 times, the mean's error is below 0.1."""
    draw = random.Random(3)
    experts, topk, tokens = 32, 4, 11
    shares = router_shares(experts, topk, 0.0)
    counts = [len({expert for _ in range(tokens) for expert in draw.sample(range(experts), topk)}) for _ in range(4000)]
    # The variance of the count is below experts / 4, so three deviations of the mean are below 0.14.
    assert touched(shares, tokens) == pytest.approx(sum(counts) / len(counts), abs=0.14)
    assert touched(shares, 0) == 0.0
    assert touched(shares, 1) == pytest.approx(topk)


def test_the_fullest_rank_has_each_ranks_most_popular_expert() -> None:
    shares = router_shares(8, 2, 1.0)
    ranks = [shares[rank::4] for rank in range(4)]
    assert fullest_rank(shares, 4) == max(ranks, key=sum)


def test_a_sum_over_ranks_sends_two_shares() -> None:
    assert all_reduce_bytes(1, 1000) == 0
    assert all_reduce_bytes(4, 1000) == 1500  # 750 to scatter, 750 to gather


def test_the_slowest_of_three_decides_and_what_is_unknown_is_said() -> None:
    device = Device("test", "a3", 64.0, 1000 * GB, {"bf16": 100 * TERA}, 100 * GB)
    work = Work(5e9, 5e9, {"bf16": 2e12, "int8": 1e12}, 3e9)
    bound = bound_of(work, device)
    assert (bound.memory, bound.compute, bound.wire) == (0.01, 0.02, 0.03)
    assert (bound.seconds, bound.by, bound.unknown) == (0.03, "wire", ("int8",))
    nothing = bound_of(work, Device("test", "a3", 64.0))
    assert (nothing.seconds, nothing.by) == (0.0, "")


TINY = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 2048,
    "moe_intermediate_size": 1024,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}


def work_of(tensor: int, data: int, step: object, profile: str = "a3@9.2") -> Work:
    layers = read_model(TINY, {}).layers
    engine = EngineFacts("bfloat16", tensor, data, expert_parallel=tensor * data > 1)
    plan = plan_of(draft_plan(engine, layers, Options(profile=profile)))
    checkpoint = Checkpoint(read_whole(TINY, layers), layers, lambda name: 16.0, 8)
    found = fit(checkpoint, plan, Serving(None, 0.9, 1000, True))
    return step_work(checkpoint, plan, found, step)  # type: ignore[arg-type]


def test_a_prefill_step_by_hand() -> None:
    """2 ranks, tensor parallel: 512 tokens, all experts touched, each token sees 256 others on average."""
    found = work_of(2, 1, prefill(512))
    linears = (2 * 1024 * 1024 + 2 * 1024 * 256) // 2
    norms_router = 2 * 1024 + 2 * 128 + 16 * 1024
    experts = 512 * 4 // 2 * 3 * 1024 * 1024  # half of the rows on each rank
    scores = 512 * 256 * 2 * 8 * 128 // 2
    head = 4096 * 1024 // 2 + 1024 // 1
    every = 2 * (512 * (linears + norms_router) + experts + scores)
    assert found.operations["bf16"] == pytest.approx(2 * (every + head), rel=1e-9)
    untouched = (1 - 4 / 16) ** 512  # none, to within 1e-64
    assert untouched < 1e-60
    layer = 8 * 3 * 1024 * 1024 + linears + norms_router
    assert found.weights == pytest.approx(2 * (2 * layer + 4096 * 1024 // 2 + 1024), rel=1e-9)
    assert found.cache == 0.0
    rows = 256 * 4 * 2 * (2 * 1024) * 0.5  # own rows, pairs, there and back, bf16, half of them to the other rank
    assert found.wire == 2 * (rows + 512 * 1024 * 2)


def test_a_decode_step_reads_each_sequences_cache() -> None:
    found = work_of(2, 1, decode(3, 700))
    assert found.cache == 2 * 3 * 700 * 2 * 128 * 2  # layers, sequences, tokens, k and v of one head, bytes
    without = work_of(2, 1, decode(3, 1))
    assert found.weights == without.weights
    # 3 tokens reach 16 x (1 - 0.75^3) experts, half of them here.
    reached = 8 * (1 - 0.75**3)
    linears = (2 * 1024 * 1024 + 2 * 1024 * 256) // 2 + 2 * 1024 + 2 * 128 + 16 * 1024
    assert found.weights == pytest.approx(2 * (2 * (reached * 3 * 1024 * 1024 + linears) + 4096 * 512 + 1024))


def test_an_uneven_router_fills_one_rank_and_leaves_experts_alone() -> None:
    even, skewed = work_of(2, 4, prefill(64)), work_of(2, 4, prefill(64, skew=1.0))
    assert skewed.operations["bf16"] > even.operations["bf16"]
    assert skewed.wire > even.wire
    assert work_of(2, 4, decode(1, 10, skew=2.0)).weights < work_of(2, 4, decode(1, 10)).weights * 1.5
