"""What MODEL may be, and what a wrong one is told; exit code 2 means that nothing was decided."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model

ROOT = Path(__file__).parents[2]
FP8_SIDE_FILE = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}


def rejected(*arguments: str) -> str:
    found = run(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    return " ".join(found.stderr.split())


def test_a_folder_its_config_and_a_copy_of_it_are_the_same_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", QWEN3_30B_A3B)
    copy = tmp_path / "Qwen--Qwen3-30B-A3B_config.json"
    copy.write_text(json.dumps(QWEN3_30B_A3B))
    whole, file, named = (report(each) for each in (folder, f"{folder}/config.json", str(copy)))
    assert whole == file
    assert named["model"] == "Qwen/Qwen3-30B-A3B"
    assert named["groups"] == whole["groups"]
    assert f"vllm serve {folder} " in whole["command"]


def test_side_files_are_read_beside_a_folders_config_and_beside_a_copy(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", QWEN3_30B_A3B, hf_quant_config=FP8_SIDE_FILE)
    assert report(folder)["formats"][0]["name"] == "modelopt-nvfp4"
    assert report(f"{folder}/config.json")["formats"][0]["name"] == "modelopt-nvfp4"
    (tmp_path / "org--name_config.json").write_text(json.dumps(QWEN3_30B_A3B))
    assert report(str(tmp_path / "org--name_config.json"))["formats"][0]["name"] == "bf16"
    (tmp_path / "org--name_hf_quant_config.json").write_text(json.dumps(FP8_SIDE_FILE))
    assert report(str(tmp_path / "org--name_config.json"))["formats"][0]["name"] == "modelopt-nvfp4"


def test_msmodelslims_description_beside_the_config_names_the_format(tmp_path: Path) -> None:
    parts = ("gate_proj", "up_proj", "down_proj")
    described = {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight": "W8A8_DYNAMIC"
        for layer in range(2)
        for expert in range(4)
        for part in parts
    }
    small = QWEN3_30B_A3B | {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2}
    found = report(write_model(tmp_path, small, quant_model_description=described))
    assert found["formats"][0]["name"] == "msmodelslim-w8a8-dynamic"
    assert found["holds"]
    assert [group["use_case"] for group in found["groups"]] == ["a8w8-int"]


@pytest.mark.parametrize("names", [3, [7], "Qwen3MoeForCausalLM", {"a": "Qwen3MoeForCausalLM"}])
def test_architectures_that_are_no_list_of_names(tmp_path: Path, names: Any) -> None:
    folder = write_model(tmp_path, QWEN3_30B_A3B | {"architectures": names})
    said = rejected("plan", str(folder))
    assert f"config.json: architectures = {names!r}; expected a list with the name of a model class" in said


@pytest.mark.parametrize("name", ["hf_quant_config.json", "x_hf_quant_config.json", "quant_model_description.json"])
def test_a_description_alone_is_answered(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(FP8_SIDE_FILE))
    found = report(str(tmp_path / name))
    assert found["moe_layers"] == 0
    assert "config.json" in found["summary"]
    assert run("plan", str(tmp_path / name)).exit_code == 0


def test_a_dense_model_is_answered(tmp_path: Path) -> None:
    dense = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28}
    found = report(write_model(tmp_path, dense))
    assert found["moe_layers"] == 0
    assert found["groups"] == []
    assert found["command"] is None
    assert "No experts under names known here" in run("plan", str(tmp_path)).stdout
    assert "Qwen3ForCausalLM stands in no table" in found["notes"][0]
    write_model(tmp_path, dense | {"architectures": ["Qwen3NextForCausalLM"], "num_experts": 0})
    assert "This model has no MoE layer" in run("plan", str(tmp_path)).stdout


def test_missing_and_unreadable_input(tmp_path: Path) -> None:
    assert "no such file or folder" in rejected("plan", str(tmp_path / "absent"))
    assert "no config.json in this folder" in rejected("plan", str(tmp_path))
    (tmp_path / "config.json").write_text("{broken")
    assert "not JSON" in rejected("plan", str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "not JSON" in rejected("plan", str(tmp_path))
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert "not JSON" in rejected("plan", str(tmp_path))
    (tmp_path / "config.json").write_text(f'{{"num_hidden_layers": {"9" * 5000}}}')
    assert "not JSON" in rejected("plan", str(tmp_path))
    for name in ("a" * 300, "~nobody-of-this-name/model"):
        assert "cannot be looked up" in rejected("plan", name)
        assert "cannot be looked up" in rejected("plan", "--from", f"vllm serve {name}")
    (tmp_path / "config.json").write_text("[1]")
    assert "JSON of type list" in rejected("plan", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": None}, "hidden of model.layers.0"),
        ({"moe_intermediate_size": 0, "intermediate_size": 0}, "intermediate_hidden of model.layers.0"),
        ({"num_experts_per_tok": 200}, "200 experts per token of 128"),
        ({"num_experts_per_tok": -1}, "topk of model.layers.0"),
        ({"num_hidden_layers": 2**40}, "1099511627776 decoder layers"),
        ({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": 3}}, "modules_to_not_convert = 3"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": 3}}, "config_groups = 3"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": "x"}}}},
            "config.json: quantization_config.config_groups.g.weights = 'x'",
        ),
    ],
)
def test_a_value_that_no_model_has_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in rejected("plan", write_model(tmp_path, QWEN3_30B_A3B | change))


def test_a_hubs_name_is_told_to_download_the_config_first() -> None:
    text = rejected("plan", "Qwen/Qwen3-30B-A3B")
    assert "download its config first" in text
    assert "hf download Qwen/Qwen3-30B-A3B config.json" in text


def test_wrong_names_and_values_are_told_the_nearest(tmp_path: Path) -> None:
    model = write_model(tmp_path, QWEN3_30B_A3B)
    assert "--profile" in rejected("plan", model, "--profil", "a3@9.1")
    assert "'a8w8-int'" in rejected("plan", model, "--use-case", "a8w8int")
    assert "a3@9.1" in rejected("plan", model, "--profile", "a3@9.3")
    assert "--requant" in rejected("plan", model, "--requant", "yes")
    assert "--topk-weights-type" in rejected("plan", model, "--topk-weights-type", "3")
    assert "--tp" in rejected("plan", model, "--tp", "0")
    assert "did you mean a3@9.1" in rejected("plan", model, "--compare", "a3@91")
    assert "does not exist on this product" in rejected("plan", model, "--profile", "310p")
    assert "topology" in rejected("plan", model, "--profile", "a3@9.1", "--topology", "urma")
    assert "doctor" in rejected("docter")


@pytest.mark.parametrize("flag", ["device-memory", "memory-bandwidth", "link-bandwidth", "peak", "target-ms"])
def test_a_number_without_end_is_rejected(tmp_path: Path, flag: str) -> None:
    model = write_model(tmp_path, QWEN3_30B_A3B)
    for value in ("inf", "nan", "-1", "1e300"):
        asked = ("--search", "--devices", "8") if flag == "target-ms" else ("--tp", "8")
        assert f"--{flag}" in rejected("plan", model, "--profile", "a3@9.1", *asked, f"--{flag}", value)


@pytest.mark.parametrize("command", [("plan",), ("show",), ("check",), ("doctor", "--model")])
def test_an_empty_name_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(write_model(tmp_path, QWEN3_30B_A3B))
    assert "'' is given where a checkpoint's folder or file is expected" in rejected(*command, "")


def test_a_longer_sequence_than_the_model_has_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM does; tests/lanes/test_plan_and_server.py asks it."""
    model = write_model(tmp_path, QWEN3_30B_A3B | {"max_position_embeddings": 40960})
    asked = ("--max-model-len", "40961")
    (rule,) = report(model, *asked)["violations"]
    assert (rule["where"], rule["got"]) == ("--max-model-len", "40961")
    assert report(model, "--max-model-len", "40960")["holds"]
    line = f"vllm serve {model} --quantization megamoe --max-model-len 40961"
    assert not report("--from", line)["holds"]
    assert report("--from", f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {line}")["holds"]
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "true")
    assert report(model, *asked)["holds"]


def test_no_model_at_all() -> None:
    assert "No MODEL" in rejected("plan", "--tp", "8")
    assert run("plan").exit_code == 2
    assert "Usage" in run("plan").output


def test_every_option_of_additional_config_is_an_option_here() -> None:
    from vllm_megamoe.plan.options import Options

    text = run("plan", "--help").output
    for name in Options.model_fields:
        assert f"--{name.replace('_', '-')}" in text
    assert "vllm-megamoe plan ./Qwen3-30B-A3B --profile a3@9.1 --tp 8 --dp 2" in text
    assert "Exit codes: 0" in text


def test_options_reach_the_plan(tmp_path: Path) -> None:
    model = write_model(tmp_path, QWEN3_30B_A3B)
    kept = report(model, "--use-case", "a8w8-int", "--requant", "allow")
    assert kept["groups"][0]["use_case"] == "a8w8-int"
    assert kept["groups"][0]["loss"]
    assert '"use_case": "a8w8-int"' in kept["command"]
    capped = report(model, "--profile", "a3@9.1", "--max-padding-overhead", "0.1")
    assert any("padding" in rule["got"] for rule in capped["violations"])
    bound = report(model, "--profile", "a3@9.1", "--max-recv-token-num", "8", "--allow-token-drop")
    assert bound["holds"]
    assert bound["groups"][0]["rows"]["max_recv_token_num"] == 8


IN_AN_IMPORT = """
import signal, sys
import vllm_megamoe.cli.answer as answer
def half(asked):
    try:
        signal.raise_signal(signal.SIGINT) if sys.argv[-1] == "16" else None
    except KeyboardInterrupt:
        pass
    raise AttributeError("module 'numpy' has no attribute 'ndarray'")
answer.answer = half
from vllm_megamoe.cli.app import main
sys.argv = ["vllm-megamoe", "plan", "x", "--tp", sys.argv[-1]]
main()
"""


@pytest.mark.parametrize(("number", "code"), [("16", 130), ("8", 1)])
def test_ctrl_c_in_an_import_is_no_error_of_a_half_module(number: str, code: int) -> None:
    """torch goes on without the numpy whose import was cut short, and fails later; without Ctrl-C it is an error."""
    done = subprocess.run(
        [sys.executable, "-c", IN_AN_IMPORT, number], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert (done.stderr == "vllm-megamoe: interrupted\n") == (code == 130)
    assert ("AttributeError" in done.stderr) == (code == 1)
