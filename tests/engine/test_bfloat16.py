"""In BF16, fed with the baseline's tokens, the log-probabilities of both paths differ by roundings alone.

The bound. Both paths compute the same model; only inside the MoE layers do their roundings differ, and every rounding
behind the first MoE layer then acts on slightly different values. One rounding to BF16 (8 significant bits) moves a
value by at most u = 2^-9 of itself, u / sqrt(3) root-mean-square. R roundings of independent sign move the final hidden
state by u * sqrt(R / 3) of its size. Logits are sums of 1024 products with independent random weights, so each moves by
a normal amount with standard deviation u * sqrt(R / 3) * (standard deviation of the logits). A log-probability is a
logit less a log-sum that moves no more than the logits do, hence the factor sqrt(2). Six standard deviations leave two
in a billion; the test looks at some thousand values.
"""

import math
from functools import partial
from typing import Any

import pytest
from engine.engines import EAGER, MEGAMOE, TP2, Engines, Prompts
from engine.steps import Rows, damaged, own_teacher, teacher

from vllm_megamoe.testing.engines import EngineRanks, Step

pytestmark = [pytest.mark.engine, pytest.mark.full]

U = 2.0**-9
# Roundings per MoE layer: the operator's four (both GEMMs, activation, combine; docs/numerics.md) and as many in
# vLLM's kernel. Per layer besides: two norms, qkv, two rotations, attention, its projection, two residual sums.
PER_LAYER = 4 + 4 + 9
LAYERS = 2
FINAL = 2  # last norm, logits
ROUNDINGS = LAYERS * PER_LAYER + FINAL


def bound(logit_std: float) -> float:
    return 6 * math.sqrt(2) * U * math.sqrt(ROUNDINGS / 3) * logit_std


def logit_std(checkpoint: str) -> float:
    """Standard deviation of the logits: a normalised row times the weights of the last norm and of the head."""
    from safetensors.torch import load_file

    tensors = load_file(f"{checkpoint}/model.safetensors")
    head = tensors["lm_head.weight"].float() * tensors["model.norm.weight"].float()
    return float(head.square().sum(dim=1).mean().sqrt())


def largest_difference(baseline: list[Rows], other: list[Rows]) -> tuple[float, str]:
    """Over the baseline's five best candidates at every position, with the place of the worst."""
    worst, where = 0.0, "nowhere"
    for s, (rows, others) in enumerate(zip(baseline, other, strict=True)):
        for position, (row, compared) in enumerate(zip(rows, others, strict=True)):
            for token, logprob in sorted(row.items(), key=lambda item: -item[1])[:5]:
                difference = abs(compared.get(token, -math.inf) - logprob)
                if difference > worst:
                    worst, where = difference, f"sequence {s}, generated token {position}, candidate {token}"
    return worst, where


def check(checkpoint: str, baseline: list[Rows], other: list[Rows]) -> None:
    worst, where = largest_difference(baseline, other)
    limit = bound(logit_std(checkpoint))
    assert worst <= limit, f"{where}: {worst:.4f} (limit {limit:.4f})"


def own_path(engines: Engines, checkpoint: str, prompts: Prompts) -> dict[str, Any]:
    """vLLM's own MoE on one rank: 16 tokens after each prompt, and what it found likely there."""
    step = partial(own_teacher, prompts=prompts, max_tokens=16)
    return dict(engines.run({"model": checkpoint, **EAGER}, [step])[0][0])


def fed_with(baseline: dict[str, Any], prompts: Prompts, replica: slice = slice(None)) -> Step:
    """What a model finds likely on the baseline's tokens."""
    starts = [len(prompt) for prompt in prompts]
    return partial(teacher, sequences=baseline["sequences"][replica], starts=starts[replica])


@pytest.fixture(scope="module")
def baseline(engines: Engines, checkpoint: str, prompts: Prompts) -> dict[str, Any]:
    return own_path(engines, checkpoint, prompts)


@pytest.fixture(scope="module")
def two_ranks(engines: Engines, checkpoint: str, prompts: Prompts, baseline: dict[str, Any]) -> list[list[Any]]:
    """Two ranks in eager mode: whole, then with the MoE output times 0.9."""
    step = fed_with(baseline, prompts)
    llm = {"model": checkpoint, **MEGAMOE, **TP2, **EAGER, "enable_prefix_caching": False}
    return engines.run(llm, [step, partial(damaged, kind="scaled", step=step)])


def test_two_ranks(checkpoint: str, baseline: dict[str, Any], two_ranks: list[list[Any]]) -> None:
    for whole, _ in two_ranks:
        check(checkpoint, baseline["top"], whole)


def test_a_tenth_less_moe_output_is_seen(checkpoint: str, baseline: dict[str, Any], two_ranks: list[list[Any]]) -> None:
    """Negative control: with the MoE output times 0.9 the same comparison fails."""
    for _, scaled in two_ranks:
        with pytest.raises(AssertionError, match="limit"):
            check(checkpoint, baseline["top"], scaled)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(EAGER, id="one rank, eager"),
        pytest.param(TP2, id="two ranks, compiled", marks=pytest.mark.compiled),
    ],
)
def test_other_runs(
    run: dict[str, Any], engines: Engines, checkpoint: str, baseline: dict[str, Any], prompts: Prompts
) -> None:
    llm = {"model": checkpoint, **MEGAMOE, **run}
    for (top,) in engines.run(llm, [fed_with(baseline, prompts)]):
        check(checkpoint, baseline["top"], top)


def test_data_parallel(
    checkpoint: str, baseline: dict[str, Any], prompts: Prompts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each rank is fed every other sequence; test_float32 has the idle rank."""
    llm = {"model": checkpoint, **MEGAMOE, **EAGER, "enable_expert_parallel": True}
    ranks = EngineRanks(2, tmp_path_factory.mktemp("replicas"))
    tops = ranks.serve_data_parallel(llm, [[fed_with(baseline, prompts, slice(r, None, 2))] for r in range(2)])
    for r, (top,) in enumerate(tops):
        check(checkpoint, baseline["top"][r::2], top)
