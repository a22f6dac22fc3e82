"""Servers that lose a worker or are told to stop: gone within 60 seconds, with words, and with nothing left behind.

Requests in flight get an error or the beginning of their own answer, never another text; the oracle is vLLM's own MoE
on one rank, one prompt after the other.
"""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from engine.ends import LIMIT_S, TP2, Life, healthy, started, under_traffic
from engine.engines import EAGER, FLOAT32, Engines, Prompts
from engine.traffic import Answer, alone, send

pytestmark = [pytest.mark.engine, pytest.mark.full]

LOADING = "Starting to load model"


@pytest.fixture(scope="module")
def expected(engines: Engines, checkpoint: str, prompts: Prompts) -> Prompts:
    """150 tokens after each of eight prompts."""
    llm = {"model": checkpoint, **FLOAT32, **EAGER}
    return engines.run(llm, [partial(alone, prompts=prompts[:8], tokens=150)])[0][0]


def check_end(life: Life, blocks: set[Path]) -> None:
    """No process and no shared memory is left."""
    assert life.gone_after() < LIMIT_S, life.text()[-3000:]
    assert [block for block in blocks if block.exists()] == []


def check_answers(answers: list[Answer], expected: Prompts) -> None:
    """Each request ended; what came of it is the beginning of its own answer."""
    assert len(answers) == len(expected)
    for answer, tokens in zip(answers, expected, strict=True):
        assert answer.tokens == tokens[: len(answer.tokens)]
        assert answer.error or len(answer.tokens) == len(tokens)
    assert any(answer.error for answer in answers), "all were answered before the server was hit"


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "a worker killed"])
def test_in_load(how: str, checkpoint: str, tmp_path: Path) -> None:
    with started(checkpoint, TP2, tmp_path / "log.txt") as life:
        life.wait_for(lambda: LOADING in life.text() and len(life.workers()) == 2, LOADING)
        blocks = life.blocks()
        if how == "a worker killed":
            os.kill(life.workers()[1], signal.SIGKILL)
        else:
            life.process.send(signal.Signals[how])
        check_end(life, blocks)
        if how == "a worker killed":
            assert life.process.exit_code() != 0
            assert "WorkerProc initialization failed" in life.text() or "died" in life.text()


def test_a_worker_killed_while_idle(checkpoint: str, tmp_path: Path) -> None:
    with healthy(checkpoint, TP2, tmp_path / "log.txt") as life:
        blocks = life.blocks()
        os.kill(life.workers()[0], signal.SIGKILL)
        check_end(life, blocks)
        # vLLM's front-end ends with code 0 then, as after SIGTERM.
        assert "died unexpectedly" in life.text()


def test_a_full_disk_under_the_log_stops_nothing(
    checkpoint: str, prompts: Prompts, expected: Prompts, tmp_path: Path
) -> None:
    """Each write to standard output, which is where vLLM's log goes, fails with ENOSPC in every process."""
    lines = {"VLLM_MEGAMOE_LOAD_LOG_STEPS": "1"}
    with healthy(checkpoint, TP2, tmp_path / "log.txt", output="/dev/full", **lines) as life:
        blocks = life.blocks()
        for pid in life.process.members():
            assert os.readlink(f"/proc/{pid}/fd/1") == "/dev/full"
        answers = send(life.client, [(prompt, 150, None) for prompt in prompts[:8]])
        assert [(answer.tokens, answer.error) for answer in answers] == [(tokens, "") for tokens in expected]
        life.process.send(signal.SIGTERM)
        check_end(life, blocks)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "a worker killed"])
def test_under_traffic(how: str, checkpoint: str, prompts: Prompts, expected: Prompts, tmp_path: Path) -> None:
    with healthy(checkpoint, TP2, tmp_path / "log.txt") as life:
        blocks = life.blocks()
        with under_traffic(life.client, prompts[:8]) as answers:
            if how == "a worker killed":
                os.kill(life.workers()[1], signal.SIGKILL)
            else:
                life.process.send(signal.Signals[how])
            check_end(life, blocks)
        check_answers(answers, expected)
        if how == "a worker killed":
            assert "died unexpectedly" in life.text()
        else:
            assert any("told to stop" in answer.error for answer in answers), answers
