"""The JSON of `plan` is an interface: its names are written down here, so that a change is made on purpose."""

import json
import subprocess
import sys
from pathlib import Path

from cli import pairs
from cli.command import QWEN3_30B_A3B, report, run, write_model

TOP = {
    "schema_version",
    "model",
    "architecture",
    "in_vllm",
    "num_layers",
    "moe_layers",
    "drafts_left_out",
    "summary",
    "holds",
    "profile",
    "topology",
    "formats",
    "engine",
    "groups",
    "ep_sizes",
    "memory",
    "fit",
    "bounds",
    "explained",
    "hccl_buffsize_mb",
    "wire",
    "violations",
    "notes",
    "corrections",
    "command",
    "curve",
}
GROUP = {
    "layers",
    "count",
    "draft",
    "format",
    "num_experts",
    "experts_per_rank",
    "topk",
    "hidden",
    "intermediate_hidden",
    "runs",
    "use_case",
    "loss",
    "communicator",
    "activation",
    "shared_experts",
    "padding",
    "rows",
}


def test_names_of_the_first_schema(tmp_path: Path) -> None:
    found = report(write_model(tmp_path, QWEN3_30B_A3B), "--profile", "a3@9.1")
    assert found["schema_version"] == 1
    assert set(found) == TOP
    assert set(found["groups"][0]) == GROUP
    assert set(found["memory"]) == {"weights", "window", "workspace"}
    assert set(found["formats"][0]) == {"name", "label", "loads", "note"}
    assert set(found["engine"]) == {
        "tensor_parallel",
        "data_parallel",
        "pipeline_parallel",
        "ep_size",
        "chosen_here",
        "max_num_batched_tokens",
        "dtype",
    }
    assert set(found["wire"]) == {
        "dispatch",
        "combine",
        "dispatch_without_router_weights",
        "dispatch_with_router_weights",
        "combine_without_dedup",
        "combine_with_dedup",
        "combine_with_dedup_worst",
        "remote_share",
    }


def test_a_dense_model_has_the_same_names(tmp_path: Path) -> None:
    assert set(report(write_model(tmp_path, {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}))) == TOP


def test_a_script_gets_json_alone_on_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vllm_megamoe.cli", "plan", write_model(tmp_path, QWEN3_30B_A3B), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert found.returncode == 0
    assert found.stdout.startswith("{")
    assert found.stderr == ""


CHECKPOINT = {
    "show": {"schema_version", "model", "architecture", "files", "bytes", "layers", "problems", "notes"},
    "check": {
        "schema_version", "model", "against", "backend", "activations", "holds", "layers", "problems", "notes",
    },
    "convert": {"schema_version", "source", "target", "bytes", "layers"},
}  # fmt: skip
LAYER = {
    "show": {
        "name", "layer", "draft", "format", "label", "naming", "num_experts", "hidden", "intermediate_hidden", "bytes",
        "bytes_per_expert", "parts", "scales", "shared", "runs",
    },
    "check": {
        "name", "use_case", "weight_rel_err", "output_rel_err", "worst_expert", "worst_token", "layer", "draft", "part",
        "format", "worst_expert_rel_err", "worst_token_rel_err", "weight_bound", "output_bound", "excess",
    },
    "convert": {
        "name", "layer", "draft", "format", "use_case", "hidden", "intermediate_hidden", "weight_rel_err", "bytes",
        "file", "files", "part", "resumed",
    },
}  # fmt: skip


def test_names_of_what_looks_at_weights(tmp_path: Path) -> None:
    source = str(pairs.write(tmp_path / "source", "MXFP8"))
    arguments = {"show": [], "check": [], "convert": [str(tmp_path / "own"), "--use-case", "a8w8-fp"]}
    for command, more in arguments.items():
        found = json.loads(run(command, source, *more, "--json").stdout)
        assert found["schema_version"] == 1
        assert set(found) == CHECKPOINT[command]
        assert set(found["layers"][0]) == LAYER[command]
