"""Environment variables: what each takes, how a wrong value is named, and that no import reads any."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_megamoe import environment
from vllm_megamoe.environment import (
    VARIABLES,
    as_set_before,
    choose_profile,
    given_timeout_s,
    hccl_buffsize,
    load_log_steps,
    wrong_variables,
)
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops.settings import Settings, settings


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


RIGHT: dict[str, dict[str, object]] = {
    "VLLM_MEGAMOE_PROFILE": {"none": "none", "950@9.2": "950@9.2"},
    "VLLM_MEGAMOE_SIMULATE": {"a2@9.1": "a2@9.1"},
    "VLLM_MEGAMOE_TIMEOUT_S": {"0.5": 0.5, "3e2": 300.0, "31536000": 31536000.0},
    "VLLM_MEGAMOE_LOAD_LOG_STEPS": {"0": 0, "7": 7},
    "VLLM_MEGAMOE_LOAD_FILE": {"load.json": "load.json"},
    "VLLM_MEGAMOE_KERNELS": {"on": "on", "off": "off"},
    "VLLM_MEGAMOE_SIMULATED_NPU": {"950@9.1": "950@9.1"},
    "HCCL_BUFFSIZE": {"1": 1, "200": 200},
}
WRONG = {
    "VLLM_MEGAMOE_PROFILE": ("a3", "A3@9.1", "310p", " a3@9.1"),
    "VLLM_MEGAMOE_SIMULATE": ("a3", "none", "910a"),
    "VLLM_MEGAMOE_TIMEOUT_S": ("0", "-1", "soon", "nan", "inf", "1e300", "31536001", "5 s"),
    "VLLM_MEGAMOE_LOAD_LOG_STEPS": ("often", "-1", "2.5", "²", "1" * 5000),
    "VLLM_MEGAMOE_LOAD_FILE": ("nowhere/load.json", ".", "/dev/null"),
    "VLLM_MEGAMOE_KERNELS": ("0", "ON", "auto"),
    "VLLM_MEGAMOE_SIMULATED_NPU": ("none", "a9"),
    "HCCL_BUFFSIZE": ("0", "-200", "1G", "1.5"),
}


def pairs(table: dict[str, object]) -> list[tuple[str, str]]:
    return [(name, text) for name, texts in table.items() for text in texts]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "text"), pairs(RIGHT))  # type: ignore[arg-type]
def test_a_right_value_is_read(name: str, text: str) -> None:
    assert VARIABLES[name].read({name: text}) == RIGHT[name][text]
    assert wrong_variables({name: text}) == []


@pytest.mark.parametrize(("name", "text"), pairs(WRONG))  # type: ignore[arg-type]
def test_a_wrong_value_is_named_with_what_was_expected_and_an_example(name: str, text: str) -> None:
    variable = VARIABLES[name]
    (sentence,) = wrong_variables({name: text})
    assert sentence.startswith(f"{name}={text!r}; expected {variable.expected}. ")
    assert sentence.endswith(f"Set it like {name}={variable.example}, or unset it.")
    assert "profile=" not in sentence
    assert variable.parse(variable.example) is not None
    with pytest.raises(ConfigError) as error:
        variable.read({name: text})
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", list(VARIABLES))
def test_an_empty_value_is_an_unset_one(name: str) -> None:
    assert VARIABLES[name].read({name: ""}) is VARIABLES[name].read({}) is None
    assert wrong_variables({name: ""}) == []


def test_a_product_without_the_operator_has_its_reason() -> None:
    (sentence,) = wrong_variables({"VLLM_MEGAMOE_PROFILE": "Atlas 300I"})
    assert "does not exist on that product" in sentence
    (sentence,) = wrong_variables({"VLLM_MEGAMOE_PROFILE": "a4"})
    assert "does not exist" not in sentence


def test_every_wrong_variable_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, texts in WRONG.items():
        monkeypatch.setenv(name, texts[0])
    assert [sentence.split("=")[0] for sentence in wrong_variables()] == [name for name in VARIABLES if name in WRONG]


def test_two_that_contradict_each_other_are_told() -> None:
    (sentence,) = wrong_variables({"VLLM_MEGAMOE_PROFILE": "a2@9.1", "VLLM_MEGAMOE_SIMULATE": "a3@9.1"})
    assert sentence.startswith("VLLM_MEGAMOE_PROFILE='a2@9.1' with VLLM_MEGAMOE_SIMULATE='a3@9.1'; expected one of")


def test_a_profile_that_is_named_wins_and_the_simulated_one_holds_for_all() -> None:
    environment = {"VLLM_MEGAMOE_PROFILE": "a2@9.1"}
    assert choose_profile("a3@9.1", environment) == "a3@9.1"
    assert choose_profile(None, environment) == "a2@9.1"
    simulated = {"VLLM_MEGAMOE_SIMULATE": "a3@9.2"}
    assert choose_profile(None, simulated) == choose_profile("a3@9.2", simulated) == "a3@9.2"
    with pytest.raises(ConfigError, match=r"profile='none' with VLLM_MEGAMOE_SIMULATE='a3@9\.2'"):
        choose_profile("none", simulated)


def test_assignments_before_a_command_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_PROFILE", "a2@9.1")
    monkeypatch.setenv("HCCL_BUFFSIZE", "30")
    found = as_set_before({"VLLM_MEGAMOE_PROFILE": "a3@9.1"})
    assert (found["VLLM_MEGAMOE_PROFILE"], found["HCCL_BUFFSIZE"]) == ("a3@9.1", "30")


def test_defaults() -> None:
    """HCCL's own default of 200 MB is in torch_api.txt; the others are ours."""
    assert (choose_profile(None), given_timeout_s(), load_log_steps(), hccl_buffsize()) == ("none", None, 100, 200)


def test_a_time_that_the_user_gave_holds_for_the_first_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [Settings().wait_s(first_call=first) for first in (True, False)] == [1800.0, 300.0]
    monkeypatch.setenv("VLLM_MEGAMOE_TIMEOUT_S", "5")
    assert [Settings().wait_s(first_call=first) for first in (True, False)] == [5.0, 5.0]
    with settings(timeout_s=2000) as given, settings(profile="a3@9.1") as inner:
        for config in (given, inner):
            assert [config.wait_s(first_call=first) for first in (True, False)] == [2000, 2000]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300])
def test_settings_reject_what_the_variable_rejects(seconds: float) -> None:
    with (
        pytest.raises(ConfigError, match=r"timeout_s=.*; expected a number of seconds above 0"),
        settings(timeout_s=seconds),
    ):
        pass


def test_nothing_is_read_at_import(repository: Path) -> None:
    """Every module that can be imported alone is, with every variable wrong."""
    modules = (
        "plugin",
        "environment",
        "plan.plan",
        "plan.options",
        "ops",
        "experts.convert",
        "layer.state",
        "layer.buffers",
        "layer.load_report",
        "simulator.install",
        "cli.app",
        "cli.doctor_command",
        "cli.plan_command",
    )
    code = "import importlib\n" + "\n".join(f"importlib.import_module('vllm_megamoe.{name}')" for name in modules)
    wrong = {name: texts[0] for name, texts in WRONG.items()}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **wrong, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_other_module_reads_our_variables(repository: Path) -> None:
    """One place: a name in quotes elsewhere would be a second reader."""
    room = Path(str(environment.__file__)).parent
    elsewhere = [
        path.name
        for path in (repository / "vllm_megamoe").rglob("*.py")
        if re.search(r'"VLLM_MEGAMOE_\w', path.read_text(encoding="utf-8")) and path.parent != room
    ]
    assert elsewhere == []
