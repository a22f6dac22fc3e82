"""In float32 the operator's twin and vLLM's own MoE path compute the same model: greedy tokens must be equal.

vLLM's CPU MoE crashes with expert parallelism, so the baseline is one rank. Twin and baseline differ in the order of
fp32 sums only (some 1e-6 of a logit); a greedy token may differ only where the two best candidates are closer
than that, and among these prompts the closest pair is 8e-4 apart.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from engine.engines import EAGER, FLOAT32, MEGAMOE, TP2, Engines, Prompts, greedy_steps
from engine.steps import greedy

from vllm_megamoe.testing.engines import EngineRanks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def baseline(engines: Engines, checkpoint: str, prompts: Prompts) -> list[Any]:
    return engines.float32_baseline(checkpoint, prompts)


# In eager mode tests/families serves this model on one rank and on two in every run.
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(EAGER, id="one rank, eager", marks=pytest.mark.full),
        pytest.param({**TP2, **EAGER}, id="tensor parallel 2, eager", marks=pytest.mark.full),
        pytest.param(TP2, id="tensor parallel 2, compiled", marks=pytest.mark.compiled),
    ],
)
def test_same_tokens(
    run: dict[str, Any], engines: Engines, checkpoint: str, prompts: Prompts, baseline: list[Any]
) -> None:
    """On every rank, with all prompts in one batch and with each of them alone."""
    for found in engines.run({"model": checkpoint, **FLOAT32, **MEGAMOE, **run}, greedy_steps(prompts)):
        assert found == baseline


@pytest.fixture
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRanks]:
    """Two ranks of their own: their engine cores run in processes of their own."""
    ranks = EngineRanks(2, tmp_path_factory.mktemp("replicas"))
    yield ranks
    ranks.stop()


@pytest.mark.full
@pytest.mark.parametrize("mode", [EAGER, pytest.param({}, marks=pytest.mark.compiled)], ids=["eager", "compiled"])
def test_data_parallel_with_uneven_load(
    mode: dict[str, Any], replicas: EngineRanks, checkpoint: str, prompts: Prompts, baseline: list[Any]
) -> None:
    """Rank 0 works on 31 prompts of many steps while rank 1 has one short prompt and idles for the rest."""
    llm = {"model": checkpoint, **FLOAT32, **MEGAMOE, "enable_expert_parallel": True, **mode}
    busy, idle = replicas.serve_data_parallel(
        llm,
        [
            [partial(greedy, prompts=prompts[:31], max_tokens=8)],
            [partial(greedy, prompts=prompts[31:], max_tokens=2)],
        ],
    )
    assert busy[0] == baseline[0][:31]
    assert idle[0] == [baseline[0][31][:2]]
