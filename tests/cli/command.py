"""Run the command in this process, and write config files for it."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from vllm_megamoe.cli.app import app

# Fields of published config.json files: only those that say what stands where and how large it is.
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3_BF16: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "torch_dtype": "bfloat16",
}


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """The command's result; an exception that is no exit is raised here."""
    found = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300", **(env or {})}, prog_name="vllm-megamoe")
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def report(*arguments: str) -> dict[str, Any]:
    """`plan ... --json`, parsed; the exit code must say what the report says."""
    found = run("plan", *arguments, "--json")
    assert found.exit_code in (0, 1), found.output
    parsed: dict[str, Any] = json.loads(found.stdout)
    assert parsed["holds"] is (found.exit_code == 0)
    return parsed


def write_model(folder: Path, config: dict[str, Any], **side_files: dict[str, Any]) -> str:
    """A checkpoint's folder with config files alone; side files by name without `.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config": config, **side_files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder)
