"""In float32 the operator's twin and vLLM's own MoE path compute the same model: greedy tokens must be equal.

vLLM's CPU MoE crashes with expert parallelism, so the baseline is one rank. Twin and baseline differ in the order of
fp32 sums only (some 1e-6 of a logit); a greedy token may differ only where the two best candidates are closer
than that, and among these prompts the closest pair is 8e-4 apart.
"""

from typing import Any

import pytest
from engines import EAGER, MEGAMOE, TP2, Engines, greedy_steps

pytestmark = pytest.mark.engine

FLOAT32 = {"dtype": "float32"}


def tokens(results: list[dict[str, Any]]) -> list[list[int]]:
    return [result["tokens"] for result in results]


@pytest.fixture(scope="module")
def baseline(engines: Engines, checkpoint: str, prompts: list[list[int]]) -> list[Any]:
    return engines.float32_baseline(checkpoint, prompts)


RUNS = {
    "one rank, eager": EAGER,
    "tensor parallel 2, eager": {**TP2, **EAGER},
    "tensor parallel 2, compiled": TP2,
}


# In eager mode tests/families serves this model on one rank and on two in every run.
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.full if run.endswith("eager") else ()) for run in RUNS]
)
def test_same_tokens(
    run: str, engines: Engines, checkpoint: str, prompts: list[list[int]], baseline: list[Any]
) -> None:
    batched, alone = engines.run({"model": checkpoint, **FLOAT32, **MEGAMOE, **RUNS[run]}, greedy_steps(prompts))
    assert tokens(batched) == tokens(baseline[0])
    assert tokens(alone) == tokens(baseline[1])


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.full)])
def test_data_parallel_with_uneven_load(
    mode: str, engines: Engines, checkpoint: str, prompts: list[list[int]], baseline: list[Any]
) -> None:
    """Rank 0 works on 31 prompts of many steps while rank 1 has one short prompt and idles for the rest."""
    llm = {
        "model": checkpoint,
        **FLOAT32,
        **MEGAMOE,
        "enable_expert_parallel": True,
        **(EAGER if mode == "eager" else {}),
    }
    shares = [prompts[:31], prompts[31:]]
    jobs = [
        [{"do": "greedy", "prompts": shares[0], "max_tokens": 8}],
        [{"do": "greedy", "prompts": shares[1], "max_tokens": 2}],
    ]
    busy, idle = engines.run_data_parallel(llm, jobs)
    expected = tokens(baseline[0])
    assert tokens(busy[0]) == expected[:31]
    assert tokens(idle[0]) == [expected[31][:2]]
