"""Command lines as people write them: taken apart, and written again so that a shell reads the same words."""

import importlib.metadata
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.cli.serve_line import flags
from vllm_megamoe.cli.serve_line.engine import override, read_engine, read_speculation, speculation_settings
from vllm_megamoe.cli.serve_line.line import ServeLine, make_flag, put, without, write_line
from vllm_megamoe.cli.serve_line.read import read_line
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.model import DraftModel


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


JSON = """--additional-config '{"enable_fused_mc2": 1, "megamoe": {"profile": "a3@9.1"}}'"""
DOTS = "--additional-config.megamoe.use_case=a8w8-int --additional-config.megamoe.max_recv_token_num 0"


def test_options_in_json_or_with_dots() -> None:
    in_json = read_line(f"vllm serve m {JSON}").additional_config()
    assert in_json == {"enable_fused_mc2": 1, "megamoe": {"profile": "a3@9.1"}}
    dotted = {"megamoe": {"use_case": "a8w8-int", "max_recv_token_num": 0}}
    assert read_line(f"vllm serve m {DOTS}").additional_config() == dotted
    # vLLM 0.32's parser puts the dotted forms behind everything else, and the last one counts.
    assert read_line(f"vllm serve m {DOTS} {JSON}").additional_config() == dotted
    assert read_line("vllm serve m --hf-overrides.architectures+ A,B").json("hf-overrides") == {
        "architectures": ["A", "B"]
    }


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("", None),
        ("--speculative-config '{}'", {}),
        ("-sc.method=mtp", {"method": "mtp"}),
        ("--speculative_config.method mtp", {"method": "mtp"}),
        ("--spec-method mtp --spec-tokens 2", {"method": "mtp", "num_speculative_tokens": "2"}),
        ("--spec-model ./draft", {"model": "./draft"}),
        ("-sc.method eagle3 --spec-model x", {"method": "eagle3", "model": "x"}),
    ],
)
def test_speculation_in_every_spelling(flags: str, settings: dict[str, Any] | None) -> None:
    assert speculation_settings(read_line(f"vllm serve m {flags}")) == settings


def test_a_setting_of_speculation_in_two_forms_is_rejected() -> None:
    with pytest.raises(ConfigError, match="--spec-method beside --speculative-config with 'method'"):
        speculation_settings(read_line("vllm serve m -sc.method mtp --spec-method ngram"))


LLAMA = {"architectures": ["LlamaForCausalLM"]}
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("settings", "config", "method", "own"),
    [
        # vLLM 0.32, SpeculativeConfig.__post_init__: what each of them becomes, and whether the target's layers load.
        ({"method": "mtp"}, None, "mtp", True),
        ({"method": "deepseek_mtp"}, None, "mtp", True),
        ({"method": "dspark"}, None, "dspark", True),
        ({"method": "ngram"}, None, "ngram", False),
        ({"method": "[ngram]"}, None, "ngram", False),
        ({"model": "ngram"}, None, "ngram", False),
        ({"method": "ngram_gpu"}, None, "ngram_gpu", False),
        ({"method": "suffix"}, None, "suffix", False),
        ({"model": "my.Proposer"}, None, "custom_class", False),
        ({"method": "mtp", "model": "d"}, DEEPSEEK, "mtp", False),
        ({"model": "d"}, DEEPSEEK, "mtp", False),
        ({"model": "d"}, LLAMA, "draft_model", False),
        ({"model": "org/eagle3-llama"}, LLAMA, "eagle3", False),
        ({"method": "eagle3", "model": "d"}, LLAMA, "eagle3", False),
        ({"method": "medusa", "model": "d"}, LLAMA, "medusa", False),
    ],
)
def test_what_speculation_loads(settings: Any, config: Any, method: str, own: bool) -> None:
    found = read_speculation(settings, lambda name: DraftModel(name, config, {}) if config else None)
    assert (found.method, found.loads_own_layers) == (method, own)
    assert (found.draft is not None) is (config is not None)


def test_overrides_change_a_section_and_replace_all_else() -> None:
    config = {
        "hidden_size": 1,
        "text_config": {"a": 1, "b": 2},
        "rope_scaling": {"x": 1},
        "compression_config": {"q": 1},
    }
    changes = {"hidden_size": 2, "text_config": {"b": 3}, "rope_scaling": {"y": 1}, "compression_config": {}, "new": 4}
    assert override(config, changes) == {
        "hidden_size": 2,
        "text_config": {"a": 1, "b": 3},
        "rope_scaling": {"y": 1},
        "compression_config": {},
        "new": 4,
    }


def test_flags_are_understood_as_vllms_parser_does() -> None:
    # A unique beginning is the flag; -O3 is a level; and a misspelt one is named with what was meant.
    found = read_line("vllm serve m --tensor-parallel 4 -O3 -O=2 --enable-expert-par")
    assert [flag.name for flag in found.flags] == [
        "tensor-parallel-size", "optimization-level", "optimization-level", "enable-expert-parallel",
    ]  # fmt: skip
    assert found.number("tensor-parallel-size", 1) == 4
    for text, words in (
        ("--tensor-paralel-size 2", "did you mean --tensor-parallel-size"),
        ("--enable-expert-paralell", "did you mean --enable-expert-parallel"),
        ("--hf-overides.x 1", "did you mean --hf-overrides"),
        ("--max-num 3", "could mean"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_line(f"vllm serve m {text}")


def test_the_flags_are_those_of_the_installed_vllm() -> None:
    """The table says the same as the parser's own source of engine flags, for the release that is installed."""
    installed = importlib.util.find_spec("vllm")
    assert installed is not None
    assert installed.origin is not None
    version = importlib.metadata.version("vllm").split("+")[0]
    assert version in flags.releases()
    source = (Path(installed.origin).parent / "engine" / "arg_utils.py").read_text()
    written = set(re.findall(r'add_argument\(\s*"--([a-z0-9-]+)"', source))
    assert len(written) > 150
    assert written - {"async-engine-args"} <= {name for name in written if flags.is_known(name)}


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
        ("vllm serve m --additional-config.megamoe 1 --additional-config.megamoe.profile none", "megamoe"),
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
