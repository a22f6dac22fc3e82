"""Prompts, checkpoints and runs of the families."""

import random
from collections.abc import Callable

import pytest
from families.serving import Checkpoints, Serving

from vllm_megamoe.testing.engines import EngineRanks

VOCABULARY = range(4, 250)
LENGTHS = (23, 2, 40, 7, 61)
"""Together more than one step takes, and odd, so that two ranks share them unevenly."""


@pytest.fixture(scope="session")
def family_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    rng = random.Random(3)
    prompts = [[rng.choice(VOCABULARY) for _ in range(length)] for length in LENGTHS]
    return Checkpoints(tmp_path_factory.mktemp("families"), prompts)


@pytest.fixture(scope="session")
def serving(engine_ranks: Callable[[int], EngineRanks], family_checkpoints: Checkpoints) -> Serving:
    return Serving(engine_ranks, family_checkpoints)
