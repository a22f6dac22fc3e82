"""A checkpoint in the package's own format gives what its source gives, converted at load."""

from functools import partial
from pathlib import Path

import pytest
from cli.command import run
from engine.engines import EAGER, MEGAMOE, TP2, Engines, Prompts
from engine.steps import greedy, layers, own_teacher

pytestmark = pytest.mark.engine


USE_CASES = ("a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp")


@pytest.mark.full
@pytest.mark.parametrize("use_case", USE_CASES)
def test_every_use_case_loads_as_it_was_written(
    engines: Engines, checkpoint: str, prompts: Prompts, tmp_path: Path, use_case: str
) -> None:
    """Operands of every dtype, shape and layout go through vLLM's loaders; log-probabilities to the last bit."""
    own = tmp_path / "own"
    assert run("convert", checkpoint, str(own), "--use-case", use_case).exit_code == 0
    ask = partial(own_teacher, prompts=prompts[:4], max_tokens=4)
    options = {"megamoe": {"use_case": use_case, "requant": "allow"}}
    source = engines.run({"model": checkpoint, **MEGAMOE, **EAGER, "additional_config": options}, [ask])
    ours = engines.run({"model": str(own), **EAGER}, [ask, layers])
    assert ours[0][0] == source[0][0]
    assert {layer["use_case"] for layer in ours[0][1]} == {use_case}


@pytest.mark.full
def test_the_same_tokens_as_its_source(
    engines: Engines, checkpoint: str, prompts: Prompts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two ranks, each of which reads its own experts alone; without a use case, which the checkpoint has already."""
    own = tmp_path_factory.mktemp("own") / "model"
    assert run("convert", checkpoint, str(Path(own)), "--use-case", "a8w8-int").exit_code == 0
    ask = partial(greedy, prompts=prompts[:8], max_tokens=8)
    options = {"megamoe": {"use_case": "a8w8-int", "requant": "allow"}}
    source = engines.run({"model": checkpoint, **MEGAMOE, **TP2, **EAGER, "additional_config": options}, [ask])
    ours = engines.run({"model": str(own), **TP2, **EAGER}, [ask, layers])
    for (expected,), (tokens, held) in zip(source, ours, strict=True):
        assert tokens == expected
        assert [layer["use_case"] for layer in held] == ["a8w8-int", "a8w8-int"]
