"""Shared experts of another type than the routed ones, fused: 950@9.2 takes that, and two ranks serve it.

The plan chooses it from config.json and the description; the engine's answers are compared with transformers' on the
checkpoint's own numbers, and a copy in the package's own format answers to the last bit as its source.
"""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.command import run
from engine.engines import TP2, Engines
from engine.mixed_shared import write
from engine.steps import teacher
from engine.test_formats import ERROR, SAME_FOR_ALL, apart, spread
from torch import Tensor

pytestmark = [pytest.mark.engine, pytest.mark.full]

_RNG = random.Random(5)
PROMPTS = [[_RNG.randrange(4, 250) for _ in range(24)] for _ in range(4)]
BEST = 20


def shared_of(llm: Any) -> list[tuple[str, str, int, int]]:
    """Of each layer on this rank: routed and shared use case, pieces, bytes of the shared operands."""
    from vllm_megamoe.testing.engines import model_of

    states = [module.mega_moe for module in model_of(llm).modules() if hasattr(module, "mega_moe")]
    return [
        (str(s.plan.use_case.value), str(s.plan.shared.use_case), s.plan.shared.pieces, s.shared.nbytes) for s in states
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensor]]:
    folder = tmp_path_factory.mktemp("mixed") / "model"
    return folder, write(folder, PROMPTS)


def answers(engines: Engines, model: Path, profile: str) -> list[Any]:
    ask = partial(teacher, sequences=PROMPTS, starts=[1] * len(PROMPTS), best=BEST)
    options = {"megamoe": {"profile": profile}}
    llm = {"model": str(model), **SAME_FOR_ALL, **TP2, "dtype": "bfloat16", "additional_config": options}
    return engines.run(llm, [shared_of, ask])


def test_950_fuses_another_type_than_the_routed_experts(engines: Engines, source: tuple[Path, list[Tensor]]) -> None:
    folder, expected = source
    for held, rows in answers(engines, folder, "950@9.2"):
        assert [(routed, shared, pieces) for routed, shared, pieces, _ in held] == [("a8w4-fp", "a8w8-fp", 1)]
        # codes of a byte, and a scale byte for 32 of them, of three matrices
        assert held[0][3] == 3 * 1024 * 256 * 33 // 32
        found = [_like(row, told) for row, told in zip(expected, rows, strict=True)]
        # One layer after another, as engine.test_formats.bound derives it: activations in E4M3, both products.
        limit = 2**0.5 * ERROR["a8w4-fp"] * spread(expected)
        assert apart(expected, found) <= limit, f"{apart(expected, found):.4f} (limit {limit:.4f})"


def _like(expected: Tensor, told: list[dict[int, float]]) -> Tensor:
    """The log-probabilities that were told, in the expected one's shape; what was not among the best is far off."""
    found = torch.full(expected.shape, -1e3, dtype=torch.float64)
    for position, row in enumerate(told):
        found[position, list(row)] = torch.tensor(list(row.values()), dtype=torch.float64)
    return found


@pytest.mark.parametrize("profile", ["950@9.2", "none"])
def test_its_own_format_answers_alike(
    engines: Engines, source: tuple[Path, list[Tensor]], tmp_path: Path, profile: str
) -> None:
    """A file for each rank, shared experts in the own format too."""
    own = tmp_path / "own"
    arguments = ["--use-case", "a8w4-fp", "--shared-use-case", "a8w8-fp", "--profile", profile, "--tp", "2"]
    assert run("convert", str(source[0]), str(own), *arguments).exit_code == 0
    assert answers(engines, own, profile) == answers(engines, source[0], profile)
