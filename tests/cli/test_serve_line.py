"""Command lines as people write them: taken apart, and written again so that a shell reads the same words."""

import shlex

import pytest

from vllm_megamoe.cli.serve_line.engine import read_engine, speculates
from vllm_megamoe.cli.serve_line.line import ServeLine, make_flag, put, without, write_line
from vllm_megamoe.cli.serve_line.read import read_line
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts


def engine_of(text: str) -> EngineFacts:
    return read_engine(read_line(text), "bfloat16", 2048)


@pytest.mark.parametrize(
    "flags",
    [
        "--tensor-parallel-size 8 --data-parallel-size 2 --enable-expert-parallel --max-num-batched-tokens 4096",
        "--tensor-parallel-size=8 --data-parallel-size=2 --enable-expert-parallel --max-num-batched-tokens=4096",
        "--tensor_parallel_size=8 --data_parallel_size 2 --enable_expert_parallel --max_num_batched_tokens 4096",
        "-tp 8 -dp 2 -ep --max-num-batched-tokens 4K",
        "-tp=8 -dp=2 -ep --max-num-batched-tokens 4K",
        "-tp 4 -tp 8 -dp 2 --no-enable-expert-parallel --enable-expert-parallel --max-num-batched-tokens 4096",
        "\\\n  -tp 8 \\\n  -dp 2 -ep \\\n  --max-num-batched-tokens 4096",
    ],
)
def test_spellings_of_one_engine(flags: str) -> None:
    assert engine_of(f"vllm serve model {flags}") == EngineFacts(
        "bfloat16", tensor_parallel=8, data_parallel=2, expert_parallel=True, max_num_batched_tokens=4096
    )


def test_defaults_and_features() -> None:
    assert engine_of("vllm serve model") == EngineFacts("bfloat16", max_num_batched_tokens=2048)
    found = engine_of("vllm serve m --enable-lora --enable-eplb --enable-dbo -pp 2 -pcp 2 --dtype half")
    assert found == EngineFacts(
        "float16",
        pipeline_parallel=2,
        prefill_context_parallel=2,
        max_num_batched_tokens=2048,
        lora=True,
        eplb=True,
        dual_batch_overlap=True,
    )
    # vLLM's human-readable numbers: k is 1000, K is 1024.
    assert engine_of("vllm serve m --max-num-batched-tokens 8k").max_num_batched_tokens == 8000


def test_environment_model_and_redirection() -> None:
    found = read_line(
        "export HCCL_BUFFSIZE=512; VLLM_USE_V1=1 nohup /usr/bin/vllm serve 'my model' --port 8000 > log 2>&1 &"
    )
    assert found.environment == (("HCCL_BUFFSIZE", "512"), ("VLLM_USE_V1", "1"))
    assert found.variable("HCCL_BUFFSIZE") == "512"
    assert found.before == ("nohup",)
    assert found.model == "my model"
    assert found.after == (">", "log", "2>&1", "&")
    assert write_line(found) == (
        "HCCL_BUFFSIZE=512 VLLM_USE_V1=1 nohup /usr/bin/vllm serve 'my model' --port 8000 > log 2>&1 &"
    )


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve --model m -tp 2",
        "vllm serve --enforce-eager m -tp 2",
        "python3 -m vllm.entrypoints.openai.api_server --model m -tp 2",
        "vllm serve m --served-model-name a b -tp 2",
        "vllm serve m --cudagraph-capture-sizes 1 2 4 -tp 2",
    ],
)
def test_the_model_wherever_it_stands(text: str) -> None:
    found = read_line(text)
    assert found.model == "m"
    assert engine_of(text).tensor_parallel == 2
    again = read_line(write_line(found))
    assert again == found


def test_options_in_json_and_with_dots() -> None:
    found = read_line(
        """vllm serve m --additional-config '{"enable_fused_mc2": 1, "megamoe": {"profile": "a3@9.1"}}' """
        "--additional-config.megamoe.use_case=a8w8-int --additional-config.megamoe.max_recv_token_num 0"
    )
    assert found.additional_config() == {
        "enable_fused_mc2": 1,
        "megamoe": {"profile": "a3@9.1", "use_case": "a8w8-int", "max_recv_token_num": 0},
    }


def test_speculation_in_every_spelling() -> None:
    assert not speculates(read_line("vllm serve m"))
    for flag in ("--speculative-config '{}'", "-sc.method=mtp", "--speculative_config.method mtp", "--spec-method mtp"):
        assert speculates(read_line(f"vllm serve m {flag}"))


def read_all(text: str) -> None:
    line = read_line(text)
    read_engine(line, "bfloat16", 2048)
    line.additional_config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve 'm", "quot"),
        ("python train.py m", "starts no vLLM server"),
        ("vllm bench m", "starts no vLLM server"),
        ("python", "starts no vLLM server"),
        ("python3 -m", "starts no vLLM server"),
        ("cd models && vllm serve m", r"another command in front of vLLM's \(cd models &&\)"),
        ("A=1 source set_env.sh; vllm serve m", r"another command in front of vLLM's \(source set_env.sh;\)"),
        ("vllm serve --enforce-eager", "no model"),
        ("vllm serve a b", "several models"),
        ("vllm serve m -tp eight", "tensor-parallel-size 'eight'"),
        ("vllm serve m -dp 0", "data-parallel-size '0'"),
        ("vllm serve m --additional-config {megamoe:", "not JSON"),
        ("vllm serve m --additional-config [1]", "expected a JSON object"),
        ("vllm serve m --additional-config '{\"megamoe\": 1}' --additional-config.megamoe.profile none", "megamoe"),
    ],
)
def test_lines_that_say_nothing(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_all(text)


def test_a_shells_variable_stays_one() -> None:
    found = read_line('vllm serve "$MODEL" --download-dir ${HOME}/models --chat-template "a b"')
    assert write_line(found) == 'vllm serve "$MODEL" --download-dir "${HOME}/models" --chat-template \'a b\''


def test_a_line_without_changes_is_written_with_the_same_words() -> None:
    text = 'A=1 vllm serve m -tp 8 --x=\'{"a": "b c"}\' --enforce-eager --port 80'
    assert shlex.split(write_line(read_line(text))) == shlex.split(text)


def test_flags_are_replaced_in_their_place() -> None:
    flags = read_line("vllm serve m -tp 8 --no-enable-lora -q fp8 --enable-lora --port 1").flags
    replaced = put(flags, make_flag("quantization", "megamoe"))
    assert [flag.name for flag in replaced][2] == "quantization"
    assert [flag.name for flag in without(flags, "enable-lora")] == ["tensor-parallel-size", "quantization", "port"]
    line = ServeLine((), (), ("vllm", "serve"), "m", put(flags, make_flag("enable-lora")))
    assert write_line(line) == "vllm serve m -tp 8 --enable-lora -q fp8 --port 1"


def test_a_flag_whose_value_was_forgotten_is_not_taken_for_absent() -> None:
    line = read_line("vllm serve m --max-num-batched-tokens --tensor-parallel-size")
    for name in ("max-num-batched-tokens", "tensor-parallel-size"):
        with pytest.raises(ConfigError, match=f"--{name} has no value in the command line"):
            line.number(name, 1)
    assert line.number("data-parallel-size", 3) == 3


def test_assignments_and_containers_stay_where_they_mean_something() -> None:
    found = read_line("A=1 && B=2; env C=3 numactl -N 0 vllm serve m")
    assert found.environment == (("A", "1"), ("B", "2"), ("C", "3"))
    assert write_line(found) == "A=1 B=2 C=3 numactl -N 0 vllm serve m"
    container = "docker run -e A=1 image vllm serve m"
    assert write_line(read_line(container)) == container
