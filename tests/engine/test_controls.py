"""Negative controls: the comparison of test_float32 must see a layer that is wrong on purpose.

The damage is done from outside, in the workers of a running engine, one kind after the other.
"""

from typing import Any

import pytest
from engines import EAGER, MEGAMOE, TP2, Engines

# tests/families has such controls on two ranks in every run; this one adds experts that change places.
pytestmark = [pytest.mark.engine, pytest.mark.full]

DAMAGE = ["scaled", "reduced twice", "swapped"]


@pytest.fixture(scope="module")
def runs(engines: Engines, checkpoint: str, prompts: list[list[int]]) -> dict[str, Any]:
    """Tokens of the whole engine, of each damage, and of the fixed engine, by kind."""
    ask = {"do": "greedy", "prompts": prompts[:8], "max_tokens": 8}
    kinds = ["none", *DAMAGE, "fixed"]
    steps: list[dict[str, Any]] = []
    for kind in kinds:
        steps += [{"do": "sabotage", "kind": "none" if kind == "fixed" else kind}, dict(ask)]
    llm = {"model": checkpoint, "dtype": "float32", **MEGAMOE, **TP2, **EAGER, "enable_prefix_caching": False}
    return dict(zip(kinds, engines.run(llm, steps)[1::2], strict=True))


def tokens(results: list[dict[str, Any]]) -> list[list[int]]:
    return [result["tokens"] for result in results]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_changes_the_tokens(kind: str, runs: dict[str, Any]) -> None:
    assert tokens(runs[kind]) != tokens(runs["none"])


def test_the_whole_and_the_mended_engine_agree(runs: dict[str, Any]) -> None:
    assert tokens(runs["fixed"]) == tokens(runs["none"])


def test_the_whole_engine_agrees_with_vllms_own_moe(
    runs: dict[str, Any], engines: Engines, checkpoint: str, prompts: list[list[int]]
) -> None:
    baseline = engines.float32_baseline(checkpoint, prompts)
    assert tokens(runs["none"]) == tokens(baseline[0])[:8]
