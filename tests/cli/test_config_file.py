"""`plan --from "vllm serve --config FILE"`: the file's flags count, and the line's own win over them."""

from pathlib import Path

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model

from vllm_megamoe.cli.serve_line.read import read_line

# What FlexibleArgumentParser.load_config_file of vLLM 0.32 makes of each line of the file.
FILE = """
model: ./Qwen3-30B-A3B
tensor_parallel_size: 2
served-model-name: [qwen, small]
middleware: []
enable-expert-parallel: true
enable-prefix-caching: false
enforce-eager: false
trust-remote-code: false
gpu-memory-utilization: 0.8
additional-config:
  megamoe: {use_case: a8w8-int, requant: allow}
hf-overrides: '{"num_experts_per_tok": 2}'
"""
WORDS = [
    ("tensor-parallel-size", ("2",)),
    ("served-model-name", ("qwen", "small")),
    ("enable-expert-parallel", ()),
    ("no-enable-prefix-caching", ()),
    ("no-enforce-eager", ()),
    ("no-trust-remote-code", ()),
    ("gpu-memory-utilization", ("0.8",)),
    ("additional-config", ('{"megamoe": {"use_case": "a8w8-int", "requant": "allow"}}',)),
    ("hf-overrides", ('{"num_experts_per_tok": 2}',)),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    return path


def test_each_kind_of_value_becomes_the_words_of_a_line(file: Path) -> None:
    line = read_line(f"vllm serve --config {file} --port 1")
    assert line.model == "./Qwen3-30B-A3B"
    assert [(flag.name, flag.values) for flag in line.flags] == [*WORDS, ("port", ("1",))]


@pytest.mark.parametrize("model", ["serve other", "serve --model other"])
def test_the_lines_model_and_flags_win(file: Path, model: str) -> None:
    line = read_line(f"vllm {model} --config {file} -tp 4 --enforce-eager")
    assert line.model == "other"
    assert line.number("tensor-parallel-size", 1) == 4
    assert line.switch("enforce-eager") is True


def test_the_plan_is_of_the_files_flags_and_writes_them_out(tmp_path: Path, file: Path) -> None:
    model = write_model(tmp_path / "model", QWEN3_30B_A3B)
    asked = f"vllm serve {model} --config {file} --quantization megamoe"
    found = report("--from", asked)
    assert found["groups"][0]["topk"] == 2
    assert found["groups"][0]["use_case"] == "a8w8-int"
    assert found["engine"]["tensor_parallel"] == 2
    assert found["corrections"][0]["what"] == f"--config {file}"
    # The line that comes out means the same without the file.
    again = report("--from", found["command"])
    assert {key: again[key] for key in ("groups", "engine", "fit")} == {
        key: found[key] for key in ("groups", "engine", "fit")
    }


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.yaml", None, "cannot be read"),
        ("serve.json", "{}", "vLLM takes .yaml and .yml alone"),
        ("broken.yaml", "a: [1", "is not YAML"),
        ("list.yaml", "- a\n- b\n", "holds list in place of flags"),
        ("nested.yaml", "config: other.yaml\n", "vLLM reads one. Join the files"),
        ("number.yaml", "1: 2\n", "holds dict in place of flags"),
        ("misspelt.yaml", "tensor-paralel-size: 2\n", "did you mean --tensor-parallel-size"),
        ("off.yaml", "enable-expert-paralel: false\n", "did you mean --no-enable-expert-parallel"),
        ("many.yaml", "tensor-parallel-size: [2, 4]\n", "4 belongs to no flag"),
    ],
)
def test_a_file_that_cannot_be_meant_is_an_error(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    model = write_model(tmp_path / "model", QWEN3_30B_A3B)
    found = run("plan", "--from", f"vllm serve {model} --config {path}")
    assert found.exit_code == 2
    assert said in found.stderr
    assert name in found.stderr or "did you mean" in said


def test_two_files_are_an_error(file: Path) -> None:
    found = run("plan", "--from", f"vllm serve --config {file} --config {file}")
    assert found.exit_code == 2
    assert "--config 2 times" in found.stderr
