"""Negative controls: the comparison of test_float32 must see a layer that is wrong on purpose.

The damage is done from outside, in the ranks of a running engine, one kind after the other.
"""

from functools import partial
from typing import Any

import pytest
from engine.engines import EAGER, FLOAT32, MEGAMOE, TP2, Engines, Prompts
from engine.steps import damaged, greedy

# tests/families has such controls on two ranks in every run; this one adds experts that change places.
pytestmark = [pytest.mark.engine, pytest.mark.full]

DAMAGE = ["scaled", "reduced twice", "swapped"]


@pytest.fixture(scope="module")
def runs(engines: Engines, checkpoint: str, prompts: Prompts) -> dict[str, Any]:
    """Tokens of the whole engine, of each damage, and of the fixed engine, by kind."""
    ask = partial(greedy, prompts=prompts[:8], max_tokens=8)
    steps = [ask, *(partial(damaged, kind=kind, step=ask) for kind in DAMAGE), ask]
    llm = {"model": checkpoint, **FLOAT32, **MEGAMOE, **TP2, **EAGER, "enable_prefix_caching": False}
    return dict(zip(["none", *DAMAGE, "fixed"], engines.run(llm, steps)[0], strict=True))


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_changes_the_tokens(kind: str, runs: dict[str, Any]) -> None:
    assert runs[kind] != runs["none"]


def test_the_whole_and_the_fixed_engine_agree(runs: dict[str, Any]) -> None:
    assert runs["fixed"] == runs["none"]


def test_the_whole_engine_agrees_with_vllms_own_moe(
    runs: dict[str, Any], engines: Engines, checkpoint: str, prompts: Prompts
) -> None:
    assert runs["none"] == engines.float32_baseline(checkpoint, prompts)[0][:8]
