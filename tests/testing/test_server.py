"""A server's start in our own words; the demo's tests run whole servers, tests/engine a real one."""

from pathlib import Path

import pytest

from vllm_megamoe.testing.server import Server, compiler_environment, has_compiler, stage

LINES = [
    "(APIServer pid=7) INFO 11-30 06:57:40 [api.py:1]  version 0.32.0",
    "(Worker pid=8) INFO 11-30 06:58:14 [cpu_model_runner.py:68] Starting to load model /tmp/model...",
    "(Worker pid=8) INFO 11-30 06:58:15 [cpu_model_runner.py:87] Warming up model for the compilation...",
    "(EngineCore pid=8) INFO 11-30 06:58:52 [core.py:402] init engine (profile, create kv cache, warmup model) took 3",
]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (0, "vLLM starts"),
        (1, "vLLM starts"),
        (2, "the workers build the model"),
        (3, "vLLM compiles the model"),
        (4, "the engine is ready"),
    ],
)
def test_a_stage_is_told_in_our_words(lines: int, words: str) -> None:
    """Lines of vLLM 0.32, one after the other; lines that nobody waits for change nothing."""
    noise = "INFO 11-30 06:58:53 [shm.py:1] No available shared memory broadcast block found in 60 seconds."
    assert stage("\n".join([*LINES[:lines], noise])).startswith(words)


def test_the_command_can_be_copied() -> None:
    server = Server(Path("/a model"), ("--enforce-eager",), Path("log"), 1234)
    assert server.command_line == "vllm serve '/a model' --enforce-eager --host 127.0.0.1 --port 1234"


@pytest.mark.parametrize(("compiler", "found"), [("g++", True), ("my-c++", False)])
def test_without_a_compiler_torch_is_told_not_to_compile(
    compiler: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a PATH with nothing but `g++`: torch looks for $CXX, else for g++."""
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    assert has_compiler() == found
    assert compiler_environment() == ({} if found else {"TORCHDYNAMO_DISABLE": "1"})
