"""Configurations at the point where the user meets them: EngineArgs -> VllmConfig, before any engine process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BASE = "qwen3_moe__base__bf16__s0"  # 4 experts, top-2


def variant(tmp: Path, source: Path, name: str, **changes: Any) -> str:
    """A folder with the source's config.json changed; configs need no weights."""
    folder = tmp / name
    folder.mkdir()
    config = json.loads((source / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    for tokenizer_file in source.glob("tokenizer*"):
        (folder / tokenizer_file.name).write_bytes(tokenizer_file.read_bytes())
    return str(folder)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory, shared_dir: Path) -> dict[str, Any]:
    """How each configuration ended: one process builds them all."""
    tmp = tmp_path_factory.mktemp("configs")
    fixtures = shared_dir / "fixtures"
    base, ours = str(fixtures / BASE), {"quantization": "megamoe", "max_model_len": 128}
    int8_linears = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["re:.*mlp.experts.*", "lm_head", "re:.*mlp.gate$"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
                "input_activations": {
                    "num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True,
                },
            }
        },
        "quantization_status": "compressed",
    }  # fmt: skip
    source = fixtures / BASE
    named = variant(tmp, source, "named", quantization_config={"quant_method": "megamoe"})
    extra = variant(tmp, source, "extra", quantization_config={"quant_method": "megamoe", "bits": 4})
    mixed = variant(tmp, source, "mixed", quantization_config=int8_linears)
    odd = variant(tmp, source, "odd", num_experts=5)
    gelu = variant(tmp, source, "gelu", hidden_act="gelu")
    options = {"megamoe": {"use_csae": "auto"}}
    cases = {
        "plain": {"model": base, **ours},
        "named, flag": {"model": named, **ours},
        "named, no flag": {"model": named, "max_model_len": 128},
        "named, unknown key": {"model": extra, **ours},
        "int8 linears": {"model": mixed, **ours},
        "int8 linears, no flag": {"model": mixed, "max_model_len": 128},
        "quantised experts": {"model": str(fixtures / "qwen3_moe__llmcompressor__W8A8__s0"), **ours},
        "fp8 experts": {"model": str(fixtures / "qwen3_moe__transformers__fp8_block128__s0"), **ours},
        "msmodelslim experts": {"model": str(fixtures / "qwen3_moe__msmodelslim__w8a8_dynamic__s0"), **ours},
        "biases": {"model": str(fixtures / "gpt_oss__base__bf16__s0"), **ours},
        "no division": {"model": odd, **ours, "tensor_parallel_size": 2, "enable_expert_parallel": True},
        "no ep": {"model": base, **ours, "tensor_parallel_size": 2},
        "fp16": {"model": base, **ours, "dtype": "float16"},
        "lora": {"model": base, **ours, "enable_lora": True},
        "lora on experts": {"model": base, **ours, "enable_lora": True, "lora_target_modules": ["o_proj", "experts"]},
        "gelu": {"model": gelu, **ours},
        "misspelt": {"model": base, **ours, "additional_config": options},
        "all at once": {
            "model": gelu, **ours, "tensor_parallel_size": 2, "dtype": "float16", "additional_config": options,
        },
        "no flag": {"model": base, "max_model_len": 128, "additional_config": options},
    }  # fmt: skip
    cases_file = tmp / "cases.json"
    cases_file.write_text(json.dumps(cases))
    command = [sys.executable, str(Path(__file__).with_name("config_cases.py")), str(cases_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("CASE "):
            found |= json.loads(line.removeprefix("CASE "))
    assert set(found) == set(cases), done.stderr[-3000:]
    return found


@pytest.mark.parametrize(
    "case",
    ["plain", "lora", "named, flag", "named, no flag", "int8 linears", "quantised experts", "msmodelslim experts"],
)
def test_accepted(case: str, ends: dict[str, Any]) -> None:
    assert ends[case] == {"config": "MegaMoeConfig", "quantization": "megamoe"}


@pytest.mark.parametrize(("case", "method"), [("no flag", None), ("int8 linears, no flag", "compressed-tensors")])
def test_never_claimed_without_the_flag(case: str, method: str | None, ends: dict[str, Any]) -> None:
    assert ends[case]["quantization"] == method


REJECTED = {
    "named, unknown key": ["unknown keys ['bits']"],
    "fp8 experts": ["from fp8-block experts is lossy", 'Add "requant": "allow"'],
    "biases": ["experts carry biases"],
    "no division": ["5 experts do not divide over 2 ranks", "[1, 5]"],
    "no ep": ["Add --enable-expert-parallel"],
    "fp16": ["float16", "Add --dtype bfloat16"],
    "lora on experts": ["Drop experts from --lora-target-modules"],
    "gelu": ["activation 'gelu'"],
    "misspelt": ["did you mean 'use_case'"],
    "all at once": ["--enable-expert-parallel", "--dtype bfloat16", "activation 'gelu'", "did you mean 'use_case'"],
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_before_an_engine_starts(case: str, ends: dict[str, Any]) -> None:
    assert ends[case].get("error") == "ConfigError", ends[case]
    for part in REJECTED[case]:
        assert part in ends[case]["message"]
