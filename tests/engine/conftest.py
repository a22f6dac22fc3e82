"""Engines, checkpoint and prompts that all engine tests share."""

import random
from collections.abc import Callable

import pytest
from engine.engines import Engines, Prompts

from vllm_megamoe.testing.engines import EngineRanks

VOCABULARY = range(4, 250)
"""Token ids of plain bytes in the test checkpoint; the special ones stay out of the prompts."""


@pytest.fixture(scope="session")
def engines(engine_ranks: Callable[[int], EngineRanks]) -> Engines:
    return Engines(engine_ranks)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen3-MoE checkpoint: hidden 1024, width 1024, 8 experts, top-2, 2 layers, BF16."""
    from vllm_megamoe.demo.checkpoint import make_checkpoint

    folder = tmp_path_factory.mktemp("checkpoint") / "qwen3-moe"
    make_checkpoint(folder)
    return str(folder)


@pytest.fixture(scope="session")
def prompts() -> Prompts:
    """32 prompts of 1 to 60 tokens."""
    rng = random.Random(7)
    return [[rng.choice(VOCABULARY) for _ in range(rng.randint(1, 60))] for _ in range(32)]
