"""docs/plan.md: its table and schemas are what the data says, its commands run, and every command keeps its schema."""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
from cli.command import DEEPSEEK_V3_BF16, QWEN3_30B_A3B, run, write_model

from tools import write_plan


def commands() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models that the page names, as folders of a working directory."""
    heads = {"num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "vocab_size": 129280}
    widths = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840}
    large = {"hidden_size": 4096, "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_hidden_layers": 94}
    write_model(tmp_path / "Qwen3-30B-A3B", QWEN3_30B_A3B)
    write_model(tmp_path / "Qwen3-235B-A22B", {**QWEN3_30B_A3B, **large})
    write_model(tmp_path / "DeepSeek-V3", {**DEEPSEEK_V3_BF16, **heads, **widths})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("line", commands())
def test_each_command_runs_and_ends_as_it_says(models: Path, line: str) -> None:
    written, _, said = line.partition("#")
    words = shlex.split(written)
    assert words[:2] == ["vllm-megamoe", "plan"]
    found = run(*words[1:])
    assert found.exit_code == (1 if "exit code 1" in said else 0), found.output
    if "219 GiB" in said:
        assert "219.0 GiB of weights" in found.stdout


def test_page_and_schemas_are_current() -> None:
    text = write_plan.PAGE.read_text()
    assert text == write_plan.page(text), "run python -m tools.write_plan"
    for name, schema in write_plan.schemas().items():
        assert (write_plan.SCHEMAS / name).read_text() == schema, "run python -m tools.write_plan"


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("plan", ["plan", "./Qwen3-30B-A3B", "--profile", "a3@9.1", "--explain"]),
        ("plan", ["plan", "./Qwen3-235B-A22B", "--profile", "a3@9.1", "--tp", "2"]),
        (
            "plan",
            ["plan", "--from", "HCCL_BUFFSIZE=20 vllm serve ./DeepSeek-V3 -tp 8 --enable-eplb", "--profile", "a3@9.2"],
        ),
        ("plan-compare", ["plan", "./Qwen3-30B-A3B", "--compare", "all"]),
        ("plan-search", ["plan", "./Qwen3-30B-A3B", "--profile", "a3@9.2", "--search", "--devices", "8"]),
        ("plan-recv", ["plan", "./Qwen3-30B-A3B", "--profile", "a3@9.1", "--tp", "8", "--recv"]),
        ("doctor", ["doctor"]),
    ],
)
def test_what_a_command_prints_keeps_its_schema(models: Path, schema: str, arguments: list[str]) -> None:
    published = json.loads((write_plan.SCHEMAS / f"{schema}.json").read_text())
    found = run(*arguments, "--json")
    assert found.exit_code in (0, 1)
    validator = jsonschema.Draft202012Validator(published)
    assert list(validator.iter_errors(json.loads(found.stdout))) == []
    assert list(validator.iter_errors({"schema_version": "one"})) != []
