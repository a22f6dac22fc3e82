"""`vllm-megamoe plan --recv`: an answer of its own, as text and as JSON."""

import json
from pathlib import Path

import pytest
from cli.command import run


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "hidden_size": 4096,
        "moe_intermediate_size": 2048,
        "intermediate_size": 8192,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


LINE = ("--profile", "a3@9.1", "--tp", "4", "--dp", "4", "--max-num-batched-tokens", "512", "--recv")


def test_the_smallest_value_and_what_another_one_covers(model: str) -> None:
    done = run("plan", model, *LINE, "--max-recv-token-num", "1000", "--allow-token-drop")
    assert done.exit_code == 0
    assert "calls of 128 rows from each of 16 ranks" in done.output
    assert "cannot lose a row: max_recv_token_num 8192 or more" in done.output
    assert "an even router sends 768 rows to each rank" in done.output
    assert "chosen: 1000, " in done.output
    assert "evenness 0.1" in done.output
    assert "% of them, 1000 for " in done.output


def test_json(model: str) -> None:
    (kind,) = json.loads(run("plan", model, *LINE, "--json").output)["kinds"]
    found = kind["receive"]
    assert (kind["layers"], found["smallest"], found["chosen"]) == ("0-3", 8192, 0)
    assert [router["covered"] for router in found["routers"]] == [None] * 3


def test_bad_usage(model: str) -> None:
    done = run("plan", model, *LINE, "--compare", "all")
    assert done.exit_code == 2
    assert "drop --compare, --plot and --search" in done.output
