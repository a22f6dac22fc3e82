"""The one file of a device check, and the command's exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.command import run

from vllm_megamoe.cli.device_check import command
from vllm_megamoe.cli.device_check.agreement import worst_token
from vllm_megamoe.cli.device_check.questions import NEITHER, nearest
from vllm_megamoe.cli.device_check.report import Agreement, Answer, DeviceReport
from vllm_megamoe.errors import ConfigError


def answer(said: str) -> Answer:
    return Answer(question="ties", about="a number", answer=said, expected="half to even", evidence=("rank 0: 1",))


def agreement(error: float) -> Agreement:
    place: dict[str, Any] = {"rank": 1, "token": 3, "problem": ""}
    return Agreement(use_case="a16w16", agrees=error < 0.1, equal=error == 0, error=error, bound=0.1, **place)


@pytest.mark.parametrize(
    ("said", "error", "code", "words"),
    [
        ("half to even", 0.0, 0, "The device does what the twin computes."),
        ("half away", 0.0, 1, "ties: the device answers 'half away', expected 'half to even'."),
        (NEITHER, 0.0, 1, "No answer that we know fits."),
        ("half to even", 0.3, 1, "MISMATCH in a16w16"),
    ],
)
def test_one_file_and_a_code(
    said: str,
    error: float,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_SIMULATE", "a3@9.2")
    monkeypatch.setattr(command, "examine", lambda ranks, profile: ([answer(said)], [agreement(error)]))
    command.installed.cache_clear()
    place = tmp_path / "report.json"
    assert command.run(place) == code
    assert words in capsys.readouterr().out
    found = DeviceReport.model_validate_json(place.read_text())
    assert (found.holds, found.profile, found.simulated) == (code == 0, "a3@9.2", True)
    assert "2026-08-21" in found.about_profile
    assert "topk_weights_type" in found.operator["create"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert command.run(place, json=True) == code
    assert json.loads(capsys.readouterr().out) == json.loads(place.read_text())
    command.installed.cache_clear()


def test_without_an_npu_it_says_how_to_try_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_MEGAMOE_SIMULATE", raising=False)
    with pytest.raises(ConfigError, match=r"torch_npu cannot be imported.*VLLM_MEGAMOE_SIMULATE=a3@9\.1"):
        command.profile_of_machine()


def test_the_nearest_candidate_answers() -> None:
    first, second = torch.zeros(2, 4), torch.ones(2, 4)
    assert nearest(first + 0.01, {"first": first, "second": second})[0] == "first"
    assert nearest(first + 0.5, {"first": first, "second": second})[0] == NEITHER
    assert nearest(first, {"first": first, "second": first})[0] == NEITHER
    infinite = torch.tensor([[1.0, float("inf")]])
    assert nearest(infinite, {"inf": infinite, "saturate": torch.tensor([[1.0, 65504.0]])})[0] == "inf"


def test_the_worst_token_is_measured_against_its_own_row() -> None:
    want = torch.tensor([[100.0, 0.0], [1.0, 0.0]])
    assert worst_token(want + torch.tensor([[1.0, 0.0], [0.1, 0.0]]), want) == (1, pytest.approx(0.1))
    assert worst_token(torch.tensor([[float("nan"), 0.0], [1.0, 0.0]]), want) == (0, float("inf"))


def test_the_command_line_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(command, "run", lambda report, *, json: called.append((report, json)) or 1)
    found = run("check", "--backend", "cann", "--report", str(tmp_path / "r.json"), "--json")
    assert found.exit_code == 1
    assert called == [(tmp_path / "r.json", True)]
    for arguments, words in ((["./model", "--backend", "cann"], "CHECKPOINT given"), (["--json"], "no CHECKPOINT")):
        found = run("check", *arguments)
        assert found.exit_code == 2
        assert words in found.stderr
    assert len(called) == 1
