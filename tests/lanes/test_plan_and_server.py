"""`vllm-megamoe plan --from LINE` and `vllm serve` of the same line say the same, for every family and oddity.

The server is asked up to its config stage, which is where it accepts or rejects before an engine process or a weight is
touched; one process asks about all lines. Both get the same words; lines are such that nothing has to be corrected.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lanes.live.tiny_configs import TINY
from lanes.quantised_cases import FP8, MTP, QUANTISED, Case

from vllm_megamoe.cli.model import read_files
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.request import Request
from vllm_megamoe.errors import ConfigError

SCRIPT = Path(__file__).with_name("agreement.py")
# Fewer rows than 2048 would be raised to that by vLLM for latent attention on a processor without AMX, and only there.
COMMON = (
    "--quantization megamoe --dtype bfloat16 --max-num-batched-tokens 2048 --max-model-len 128 --skip-tokenizer-init "
    "--enforce-eager"
)
NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 2}'"""
BUFFSIZE = "4096"
BOTH = "-tp 2 -dp 2 --enable-expert-parallel"
A3 = """--additional-config '{"megamoe": {"profile": "a3@9.2", "max_padding_overhead": 1000}}'"""

DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
WITH_DRAFTS = [name for name, config in TINY.items() if any(config.get(key) for key in DRAFTS)]

# What vLLM 0.32 itself rejects on a CPU, in its own words, before the plan is made.
_MAMBA = "--mamba-block-size can only be set with --enable-prefix-caching"
NOT_ASKED = {
    "Ling-2.5, one rank": _MAMBA,
    "Kimi-K3, one rank": _MAMBA,
    "Kimi-K3, tensor and data parallel": _MAMBA,
    "modelopt's file, MXFP8": "Unknown ModelOpt quant algo: MXFP8",
}
# What vLLM rejects in its own words, and the plan in ours.
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
_LONG = "--max-model-len 129"
_DERIVED = "is greater than the derived max_model_len"
TOO_LONG = ("a longer sequence than the model has", "a longer sequence than YaRN has")

QWEN, DEEPSEEK = TINY["Qwen3-MoE"], TINY["DeepSeek-V3"]
NAMES = [f"model.layers.{i}.mlp.experts" for i in range(5)]
TENSORS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "g": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
}  # fmt: skip
_SERVED = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128,
    "max_position_embeddings": 128,
}  # fmt: skip


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


ODDITIES: dict[str, Case] = {
    # A key that is left out has the default of its config class.
    "no number of experts": (without(QWEN, "num_experts"), ""),
    "no top-k": (without(QWEN, "num_experts_per_tok"), ""),
    "no sparse step": (without(QWEN, "decoder_sparse_step", "mlp_only_layers"), ""),
    "no dense layers": (without(DEEPSEEK, "first_k_dense_replace", "num_nextn_predict_layers"), ""),
    "no factor, no shared": (without(DEEPSEEK, "routed_scaling_factor", "n_shared_experts"), MTP),
    "only sizes": ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **_SERVED}, ""),
    "mixtral by another name": (
        {**without(TINY["Mixtral"], "num_local_experts"), "num_experts": 4}, ""),
    "dbrx": (
        {
            "architectures": ["DbrxForCausalLM"], "model_type": "dbrx", "d_model": 64, "n_layers": 2, "n_heads": 4,
            "vocab_size": 128, "max_seq_len": 128, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"}},
        },
        "",
    ),
    "dense": ({**TINY["OLMoE"], "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_experts": None}, ""),
    # Lists per layer, and values that no model has.
    "list of layers too short": ({**DEEPSEEK, "moe_layer_freq": [0, 1]}, ""),
    "list of layers": ({**DEEPSEEK, "moe_layer_freq": [0, 1, 1, 0, 1, 1], "num_hidden_layers": 6}, ""),
    # Which experts are quantised.
    "one expert left out by a pattern": (
        {**QWEN, "quantization_config": {**TENSORS, "ignore": ["lm_head", r"re:.*mlp\.experts\.3\..*"]}}, ""),
    "all experts left out": (
        {**QWEN, "quantization_config": {**TENSORS, "ignore": ["lm_head", r"re:.*mlp\.experts.*"]}}, ""),
    "compression_config": ({**QWEN, "compression_config": TENSORS}, ""),
    "fp8, experts left out": ({**QWEN, "quantization_config": {**FP8, "modules_to_not_convert": NAMES}}, ""),
    "fp8": ({**QWEN, "quantization_config": FP8}, ""),
    "modelopt's file": (
        {
            **QWEN,
            "hf_quant_config.json": {
                "producer": {"name": "modelopt", "version": "0.29"},
                "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
            },
        },
        "",
    ),
    # What speculation loads.
    "quantised MTP, ngram": (
        {**DEEPSEEK, "quantization_config": {**FP8, "modules_to_not_convert": NAMES}}, NGRAM),
    "quantised MTP, mtp": ({**DEEPSEEK, "quantization_config": {**FP8, "modules_to_not_convert": NAMES}}, MTP),
    "MTP layers in a folder of their own": (DEEPSEEK, "-sc.model {mtp} -sc.num_speculative_tokens 1"),
    "quantised MTP layers in a folder of their own": (DEEPSEEK, "-sc.model {fp8} -sc.num_speculative_tokens 1"),
    "a draft model with experts": (QWEN, "-sc.method draft_model -sc.model {other} -sc.num_speculative_tokens 1"),
    # What the command line changes.
    "overrides": (QWEN, """--hf-overrides '{"num_experts_per_tok": 5, "num_hidden_layers": 2}'"""),
    "overrides with dots": (QWEN, "--hf-overrides.num_experts_per_tok 4"),
    "override of the activation": (QWEN, """--hf-overrides '{"hidden_act": "gelu"}'"""),
    "another config": (QWEN, "--hf-config-path {other}"),
    # Layouts.
    "experts do not divide": ({**QWEN, "num_experts": 9}, "-tp 2 --enable-expert-parallel"),
    "ranks of a product": (QWEN, f"-tp 2 --enable-expert-parallel {A3}"),
    TOO_LONG[0]: ({**QWEN, "max_position_embeddings": 128}, _LONG),
    TOO_LONG[1]: ({**QWEN, "max_position_embeddings": 128, "rope_parameters": _YARN}, _LONG),
    "a factor that lengthens": (
        {**QWEN, "max_position_embeddings": 128, "rope_parameters": {**_YARN, "rope_type": "linear"}}, _LONG),
    "topk beyond a product": ({**QWEN, "num_experts": 64, "num_experts_per_tok": 20}, f"-tp 2 -ep {A3}"),
    "stages of a pipeline": (QWEN, "-pp 2 -tp 2 --enable-expert-parallel"),
    "stages of a product's pipeline": (QWEN, f"-pp 2 -tp 2 --enable-expert-parallel {A3}"),
    "more weights than a product's devices have": (
        {**QWEN, "num_experts": 128, "hidden_size": 8192, "moe_intermediate_size": 3072, "num_hidden_layers": 60},
        f"-tp 2 --enable-expert-parallel {A3}",
    ),
    "more weights than all of a product's devices have": (
        {**QWEN, "num_experts": 512, "hidden_size": 8192, "moe_intermediate_size": 3072, "num_hidden_layers": 200},
        f"-tp 4 --enable-expert-parallel {A3}",
    ),
    "gelu": ({**QWEN, "hidden_act": "gelu"}, ""),
    "a wrong option": (QWEN, """--additional-config '{"megamoe": {"use_csae": "auto"}}'"""),
    "lossy without consent": (QWEN, """--additional-config '{"megamoe": {"use_case": "a8w8-int"}}'"""),
}  # fmt: skip

CASES: dict[str, Case] = {
    **{f"{name}, one rank": (config, "") for name, config in TINY.items()},
    **{f"{name}, tensor and data parallel": (config, BOTH) for name, config in TINY.items()},
    **{f"{name}, MTP": (TINY[name], MTP) for name in WITH_DRAFTS},
    **ODDITIES,
    **QUANTISED,
}


def write(place: Path, config: dict[str, Any]) -> Path:
    place.mkdir()
    files = {name: content for name, content in config.items() if name.endswith(".json")}
    for name, content in {**files, "config.json": without(config, *files)}.items():
        (place / name).write_text(json.dumps(content))
    return place


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    beside = {
        "other": {**QWEN, "num_experts": 6, "moe_intermediate_size": 32},
        "mtp": DEEPSEEK,
        "fp8": {**DEEPSEEK, "quantization_config": FP8},
    }
    others = {name: write(place / name, config) for name, config in beside.items()}
    made = {name: write(place / str(number), config) for number, (name, (config, _)) in enumerate(CASES.items())}
    return made | others


def flags_of(name: str, folders: dict[str, Path]) -> str:
    flags = CASES[name][1]
    for other in ("other", "mtp", "fp8"):
        flags = flags.replace(f"{{{other}}}", str(folders[other]))
    return f"{COMMON} {flags}"


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the server's config stage says of each line."""
    cases = {name: {"folder": str(folders[name]), "flags": shlex.split(flags_of(name, folders))} for name in CASES}
    file = tmp_path_factory.mktemp("lines") / "cases.json"
    file.write_text(json.dumps(cases))
    # A window that is large enough: the command line does not know the server's environment.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    environment["HCCL_BUFFSIZE"] = BUFFSIZE
    command = [sys.executable, str(SCRIPT), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800, check=False)
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("CASE "):
            found |= json.loads(line.removeprefix("CASE "))
    assert set(found) == set(CASES), done.stderr[-3000:]
    return found


def command_line(folder: Path, flags: str) -> dict[str, Any]:
    """The command's verdict in the server's terms."""
    try:
        report, plan, _ = make_report(read_files(str(folder)), Request({}, line=f"vllm serve {folder} {flags}"))
    except ConfigError as error:
        return {"error": str(error)}
    assert [step for step in report.corrections if not step.what.startswith("HCCL")] == []
    full = [f"{v.where}: {v.got}; expected {v.expected}. {v.remedy}" for v in report.violations if v.where == "memory"]
    if len(report.violations) > len(full):
        # A server that refuses does not come to memory.
        said = [
            f"{v.where}: {v.got}; expected {v.expected}. {v.remedy}" if v.expected else v.got
            for v in report.violations
            if v.where != "memory"
        ]
        return {"refused": said}
    return {"plans": [repr(layer) for layer in plan.layers] if plan else [], "memory": full}


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*NOT_ASKED, *TOO_LONG)])
def test_both_say_the_same(
    name: str, folders: dict[str, Path], server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", BUFFSIZE)
    assert command_line(folders[name], flags_of(name, folders)) == server[name]


@pytest.mark.parametrize("name", NOT_ASKED)
def test_what_vllm_rejects_is_still_so(name: str, server: dict[str, Any]) -> None:
    assert NOT_ASKED[name] in server[name]["vllm"]


@pytest.mark.parametrize("name", TOO_LONG)
def test_both_reject_a_length_that_the_model_does_not_have(
    name: str, folders: dict[str, Path], server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _DERIVED in server[name]["vllm"]
    (said,) = command_line(folders[name], flags_of(name, folders))["refused"]
    assert said.startswith("--max-model-len: 129; expected 128 at most")
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert "plans" in command_line(folders[name], flags_of(name, folders))


def test_the_lines_end_in_every_way(server: dict[str, Any]) -> None:
    """Equal answers mean something only where answers differ."""
    ways = [next(iter(found)) for found in server.values()]
    assert {"plans", "refused", "error"} <= set(ways)
    assert sum(bool(found.get("plans")) for found in server.values()) > 40
    assert [name for name, found in server.items() if found.get("memory")] == [
        "more weights than a product's devices have", "more weights than all of a product's devices have",
    ]  # fmt: skip
