"""`plan` answers for every published config file, under a product's profile and without one."""

from pathlib import Path
from typing import Any

import pytest
from cli.command import report

from vllm_megamoe.cli.report.schema import PlanReport


def configs(shared_dir: Path) -> list[Path]:
    return sorted((shared_dir / "model_configs").glob("*.json"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "config" in metafunc.fixturenames:
        import os

        place = Path(os.environ.get("VLLM_MEGAMOE_SHARED") or Path(__file__).parents[3] / "shared")
        names = [path.name for path in configs(place)] or ["absent"]
        metafunc.parametrize("config", names)


def answer(shared_dir: Path, name: str, *arguments: str) -> dict[str, Any]:
    return report(str(shared_dir / "model_configs" / name), *arguments)


def test_every_file_is_answered(shared_dir: Path, config: str) -> None:
    found = answer(shared_dir, config, "--profile", "a3@9.1")
    PlanReport.model_validate(found)
    described = config.endswith("hf_quant_config.json")
    assert (found["moe_layers"] == 0) or not described
    if found["moe_layers"] == 0:
        assert found["holds"]
        assert found["violations"] == []
    else:
        assert sum(group["count"] for group in found["groups"]) == found["moe_layers"]
        assert found["holds"] is (found["violations"] == [])
        # A format that cannot be read is named, and never holds.
        assert all(form["loads"] for form in found["formats"]) or not found["holds"]


@pytest.mark.parametrize(
    ("name", "layers", "numbers"),
    [
        ("Qwen--Qwen3-30B-A3B_config.json", 48, "0-47"),
        ("deepseek-ai--DeepSeek-V3_config.json", 58, "3-60"),
        ("moonshotai--Kimi-K2-Instruct_config.json", 60, "1-60"),
        ("mistralai--Mixtral-8x7B-v0.1_config.json", 32, "0-31"),
        ("zai-org--GLM-5_config.json", 75, "3-77"),
        ("MiniMaxAI--MiniMax-M2.5_config.json", 62, "0-61"),
    ],
)
def test_layers_with_experts(shared_dir: Path, name: str, layers: int, numbers: str) -> None:
    found = answer(shared_dir, name)
    assert found["moe_layers"] == layers
    assert found["groups"][0]["layers"] == numbers


# facts: model families against the operator's limits, with the stricter reading of A2/A3.
PADS = {
    "Qwen--Qwen3-30B-A3B_config.json": (2048, 1024, 0.33),
    "Qwen--Qwen3-VL-30B-A3B-Instruct_config.json": (2048, 1024, 0.33),
    "Qwen--Qwen3.5-35B-A3B_config.json": (2048, 1024, 1.00),
}
FITS = [
    "Qwen--Qwen3-235B-A22B_config.json",
    "Qwen--Qwen3.5-397B-A17B_config.json",
    "deepseek-ai--DeepSeek-V3_config.json",
    "deepseek-ai--DeepSeek-V4-Pro_config.json",
    "moonshotai--Kimi-K2-Instruct_config.json",
    "MiniMaxAI--MiniMax-M2.5_config.json",
    "zai-org--GLM-5_config.json",
]


def test_geometry_on_a3(shared_dir: Path) -> None:
    for name, (hidden, width, overhead) in PADS.items():
        padding = answer(shared_dir, name, "--profile", "a3@9.1")["groups"][0]["padding"]
        assert (padding["hidden"], padding["intermediate_hidden"]) == (hidden, width)
        assert padding["overhead"] == pytest.approx(overhead, abs=0.01)
    for name in FITS:
        found = answer(shared_dir, name, "--profile", "a3@9.1")
        assert all(group["padding"] is None for group in found["groups"]), name
        # Nothing is in the way but the consent that free scales need, and memory: read as BF16, the largest need more
        # than the 32 dies that the profile takes.
        others = [rule for rule in found["violations"] if rule["where"] != "memory"]
        assert all("is lossy" in rule["got"] for rule in others), others


def test_activations(shared_dir: Path) -> None:
    clamped = answer(shared_dir, "deepseek-ai--DeepSeek-V4-Flash_config.json", "--profile", "a3@9.2")
    assert clamped["groups"][0]["activation"]["text"] == "swiglu (clamp 10)"
    kimi = answer(shared_dir, "moonshotai--Kimi-K3_config.json", "--profile", "a3@9.2")
    assert kimi["groups"][0]["activation"]["params"] == {"beta": 4.0, "linear_beta": 25.0}
    assert kimi["groups"][0]["shared_experts"]["mode"] == "vllm"
