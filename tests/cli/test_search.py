"""`plan --search` ranks every legal split of some devices by the bounds of its steps."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model

from vllm_megamoe.cli.report.fit_schema import SearchReport


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "Qwen3-30B-A3B", QWEN3_30B_A3B)


def search(model: str, *arguments: str) -> tuple[dict[str, Any], int]:
    found = run("plan", model, "--profile", "a3@9.2", "--search", *arguments, "--json")
    parsed: dict[str, Any] = json.loads(found.stdout)
    SearchReport.model_validate(parsed)
    return parsed, found.exit_code


def test_every_legal_split_is_judged_as_plan_judges_it(model: str) -> None:
    found, code = search(model, "--devices", "16")
    assert code == 0
    sizes = {(row["tensor_parallel"], row["data_parallel"]) for row in found["rows"]}
    assert sizes == {(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)}
    for row in found["rows"]:
        tensor, data = str(row["tensor_parallel"]), str(row["data_parallel"])
        same = report(model, "--profile", "a3@9.2", "--tp", tensor, "--dp", data)
        assert row["left"] == same["fit"]["left"]
        assert row["sequences"] == same["fit"]["sequences"]
        assert row["prefill"] == same["bounds"]["prefill"]
        assert row["decode"] == same["bounds"]["decode"]
    speeds = [row["decode"]["tokens_per_second"] for row in found["rows"] if row["meets"]]
    assert speeds == sorted(speeds, reverse=True)


def test_targets_leave_out_what_misses_them(model: str) -> None:
    free, _ = search(model, "--devices", "16")
    fastest = max(row["decode"]["seconds"] for row in free["rows"]) * 1e3
    found, code = search(model, "--devices", "16", "--target-ms", f"{fastest / 2:.3f}")
    assert code == 0
    for row in found["rows"]:
        if row["meets"]:
            assert row["decode"]["seconds"] * 1e3 <= fastest / 2
            assert row["decode"]["sequences"] >= 1
    none, code = search(model, "--devices", "16", "--target-ms", "0.01")
    assert code == 1
    assert all("ms at least" in row["why_not"] for row in none["rows"])
    many, code = search(model, "--devices", "2", "--target-sequences", "100000")
    assert code == 1
    assert all("not 100000" in row["why_not"] for row in many["rows"])


def test_what_does_not_fit_comes_last_with_its_reason(tmp_path: Path) -> None:
    sizes = {"hidden_size": 4096, "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_hidden_layers": 94}
    large = write_model(tmp_path / "large", {**QWEN3_30B_A3B, **sizes})
    found, code = search(large, "--devices", "8")
    assert code == 1
    assert {row["why_not"] for row in found["rows"]} == {"does not fit"}
    assert search(large, "--devices", "8", "--as", "msmodelslim-w8a8")[1] == 0


def test_a_picture(model: str, tmp_path: Path) -> None:
    file = tmp_path / "splits.svg"
    assert run("plan", model, "--profile", "a3@9.2", "--search", "--devices", "8", "--plot", str(file)).exit_code == 0
    text = file.read_text()
    assert text.count("<path") > 10
    assert "<svg" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--search",), "--search needs --devices N"),
        (("--search", "--devices", "3"), "No split of 3 devices is legal"),
        (("--search", "--devices", "8", "--tp", "2"), "--search chooses --tp and --dp"),
        (("--search", "--devices", "8", "--profile", "none"), "--search needs a device's figures"),
        (("--search", "--devices", "8", "--compare", "all"), "--search looks at one profile"),
    ],
)
def test_bad_usage(model: str, arguments: tuple[str, ...], said: str) -> None:
    profile = () if "--profile" in arguments else ("--profile", "a3@9.2")
    found = run("plan", model, *profile, *arguments)
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.split())


def test_it_reads_well(model: str) -> None:
    text = run("plan", model, "--profile", "a3@9.2", "--search", "--devices", "8").stdout
    assert "Pipelines are not among them" in text
    assert "8 x a3" in text
    assert "These are bounds, not estimates." in " ".join(text.split())
