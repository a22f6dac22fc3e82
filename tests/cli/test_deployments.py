"""The yardstick of `plan`: every published deployment fits, half of its devices is refused where the weights alone
exceed them, and `--from` translates its line with a reason for each change."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli.command import report
from cli.deployments import Deployment, deployments

USABLE = 60.97
"""GiB of a die of A3 as its runtime reports them (vllm-ascend #19)."""


def rows() -> list[Deployment]:
    place = Path(os.environ.get("VLLM_MEGAMOE_SHARED") or Path(__file__).parents[3] / "shared")
    return deployments(place) if (place / "facts" / "deployments.md").is_file() else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        found = rows()
        metafunc.parametrize("row", found or [None], ids=[row.name for row in found] or ["absent"])


def plan(shared_dir: Path, row: Deployment, line: str) -> dict[str, Any]:
    config = str(shared_dir / "model_configs" / f"{row.config}_config.json")
    consent = ["--requant", "allow"] if row.stored_as == "mxfp8" else []
    return report(config, "--from", line, "--profile", row.profile, "--as", row.stored_as, *consent)


def test_there_are_as_many_rows_as_the_table_has(shared_dir: Path) -> None:
    assert len(rows()) >= 65


def test_a_published_deployment_fits(shared_dir: Path, row: Deployment) -> None:
    found = plan(shared_dir, row, row.line)
    assert found["violations"] == []
    fit = found["fit"]
    assert fit["holds"]
    assert fit["sequences"] >= 1
    assert found["engine"]["tensor_parallel"] * found["engine"]["data_parallel"] == row.tensor * row.data


@pytest.mark.full
def test_its_line_is_translated(shared_dir: Path, row: Deployment) -> None:
    found = plan(shared_dir, row, row.line)
    steps = {step["what"]: step for step in found["corrections"]}
    assert all(step["why"].endswith(".") for step in found["corrections"])
    assert steps["--quantization megamoe"]["action"] == "set"
    assert "'ascend'" in steps["--quantization megamoe"]["why"]
    switch = [what for what in steps if "enable_fused_mc2" in what]
    assert len(switch) == bool(row.switch)
    assert all(steps[what]["action"] == "drop" for what in switch)
    command = found["command"]
    assert "--quantization megamoe" in command
    assert "enable_fused_mc2" not in command
    # A window that is large enough stays as it was set; a smaller one is raised to what the plan needs.
    given = row.line.partition(" ")[0] if row.line.startswith("HCCL_BUFFSIZE") else ""
    needed = found["hccl_buffsize_mb"]
    if needed is not None and given and int(given.partition("=")[2]) >= needed:
        assert command.startswith(f"{given} ")
    elif needed is not None:
        assert int(command.partition(" ")[0].partition("=")[2]) >= needed
    again = report(
        str(shared_dir / "model_configs" / f"{row.config}_config.json"),
        "--from",
        command,
        "--as",
        row.stored_as,
        "--backend",
        "cann",
    )
    assert [step for step in again["corrections"] if "additional-config" not in step["what"]] == []


BYTES = {"bf16": 2.0, "msmodelslim-w8a8": 1.0, "msmodelslim-w4a8": 0.5, "msmodelslim-w4a4": 0.53}


@pytest.mark.full
def test_half_of_the_devices_are_refused_where_weights_alone_exceed_them(shared_dir: Path, row: Deployment) -> None:
    """The experts' bytes come from the config by hand: every published model here keeps at least 95 % in them."""
    config = json.loads((shared_dir / "model_configs" / f"{row.config}_config.json").read_text())
    config = {**config, **config.get("text_config", {})}
    experts = next(config[key] for key in ("n_routed_experts", "num_experts", "num_local_experts") if key in config)
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    layers = config["num_hidden_layers"] - (config.get("first_k_dense_replace") or 0)
    size = layers * experts * 3 * config["hidden_size"] * width * BYTES.get(row.stored_as, 1.03)
    ranks = row.tensor * row.data // 2
    if size / ranks / row.stages / 2**30 <= USABLE or row.profile != "a3@9.2" or ranks < 2:
        return
    tensor, data = (row.tensor, row.data // 2) if row.data > 1 else (row.tensor // 2, 1)
    found = plan(shared_dir, row, row.on(tensor, data))
    assert found["holds"] is False
    wrong = [violation for violation in found["violations"] if violation["where"] == "memory"]
    assert len(wrong) == 1
    assert "GiB of weights" in wrong[0]["got"]
    assert found["fit"]["smallest"] is not None


def test_some_halves_are_refused(shared_dir: Path) -> None:
    """The test above judges these at least: a table that changed must not empty it."""
    refused = [
        ("Qwen3-235B-A22B", "bf16", 4, 1),
        ("MiniMax-M3", "bf16", 8, 1),
        ("DeepSeek-R1", "msmodelslim-w8a8", 8, 1),
    ]
    names = {"Qwen3-235B-A22B": "Qwen--Qwen3-235B-A22B", "MiniMax-M3": "MiniMaxAI--MiniMax-M3"}
    for name, form, tensor, data in refused:
        config = names.get(name, "deepseek-ai--DeepSeek-R1")
        sizes = ("--tp", str(tensor), "--dp", str(data))
        found = report(
            str(shared_dir / "model_configs" / f"{config}_config.json"), "--profile", "a3@9.2", "--as", form, *sizes
        )
        assert [violation["where"] for violation in found["violations"]] == ["memory"]
