"""`plan --from`: what to drop, add and set on an existing command line, and the plan of the corrected one."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model", QWEN3_30B_A3B)


def steps(found: dict[str, Any]) -> dict[str, list[str]]:
    sorted_: dict[str, list[str]] = {"drop": [], "add": [], "set": []}
    for step in found["corrections"]:
        assert step["why"]
        sorted_[step["action"]].append(step["what"])
    return sorted_


def test_a_line_of_other_habits_is_corrected(model: str) -> None:
    line = (
        f"HCCL_BUFFSIZE=20 vllm serve {model} -tp 8 --data-parallel-size=2 --enable-lora --lora-modules a=b "
        "--enable-eplb --eplb-config.num_redundant_experts 8 --enable-dbo --quantization ascend --dtype float16 "
        "--max-num-batched-tokens 8192 --port 80"
    )
    found = report("--from", line, "--profile", "a3@9.1")
    assert steps(found) == {
        "drop": [
            "--enable-eplb --eplb-config.num_redundant_experts 8",
            "--enable-dbo",
        ],
        "add": ["--enable-expert-parallel", """--additional-config '{"megamoe": {"profile": "a3@9.1"}}'"""],
        "set": ["--quantization megamoe", "--dtype bfloat16", "HCCL_BUFFSIZE=200"],
    }
    assert found["holds"]
    assert found["engine"]["ep_size"] == 16
    assert found["engine"]["max_num_batched_tokens"] == 8192
    assert found["command"] == (
        f"HCCL_BUFFSIZE=200 vllm serve {model} -tp 8 --data-parallel-size=2 --enable-lora --lora-modules a=b "
        "--quantization megamoe --dtype bfloat16 --max-num-batched-tokens 8192 --port 80 --enable-expert-parallel "
        """--additional-config '{"megamoe": {"profile": "a3@9.1"}}'"""
    )


def test_the_corrected_line_needs_no_correction(model: str) -> None:
    first = report("--from", f"vllm serve {model} -tp 4 --enable-eplb", "--profile", "a3@9.1")
    second = report("--from", first["command"])
    assert second["corrections"] == []
    assert second["command"] == first["command"]
    assert second["profile"] == "a3@9.1"
    assert second["memory"] == first["memory"]


def test_b08_a_window_that_is_too_small_is_set_to_what_the_plan_needs(model: str) -> None:
    config = """--additional-config '{"megamoe": {"profile": "a3@9.1", "workspace_budget_gib": 64}}'"""
    line = f"vllm serve {model} --quantization megamoe -tp 2 -dp 8 -ep --max-num-batched-tokens 8192 {config}"
    found = report("--from", f"HCCL_BUFFSIZE=250 {line}")
    needed = found["hccl_buffsize_mb"]
    assert needed > 250
    assert steps(found) == {"drop": [], "add": [], "set": [f"HCCL_BUFFSIZE={needed}"]}
    assert steps(report("--from", f"HCCL_BUFFSIZE={needed} {line}"))["set"] == []
    assert steps(report("--from", f"HCCL_BUFFSIZE=much {line}"))["set"] == [f"HCCL_BUFFSIZE={needed}"]


@pytest.mark.parametrize("given", ["megamoe2", "ascend,megamoe2", "megamoe2,notmegamoe"])
def test_a_plugin_whose_name_holds_ours_is_another_one(given: str, model: str) -> None:
    found = report("--from", f"VLLM_PLUGINS={given} vllm serve {model}")
    assert f"VLLM_PLUGINS={given},megamoe" in steps(found)["set"]


@pytest.mark.parametrize("flags", ["-tp 8", "--data-parallel-size 8", "-tp 2 -dp 4 --no-enable-expert-parallel"])
def test_b66_ranks_without_expert_parallelism_get_the_flag(model: str, flags: str) -> None:
    found = report("--from", f"vllm serve {model} {flags}", "--profile", "a3@9.1")
    assert "--enable-expert-parallel" in steps(found)["add"]
    assert found["engine"]["ep_size"] == 8
    assert found["holds"]


def test_b66_128_ranks_are_rejected_with_the_sizes_that_the_product_takes(model: str) -> None:
    found = report(model, "--profile", "a3@9.1", "--tp", "8", "--dp", "16")
    assert any("ep_world_size=128" in rule["got"] for rule in found["violations"])
    assert found["ep_sizes"] == [2, 4, 8, 16, 32]


def test_the_model_may_be_given_beside_a_line_that_names_a_hubs(model: str) -> None:
    rejected = run("plan", "--from", "vllm serve Qwen/Qwen3-30B-A3B -tp 2")
    assert rejected.exit_code == 2
    assert "give its config as MODEL too" in rejected.stderr
    found = report(model, "--from", "vllm serve Qwen/Qwen3-30B-A3B -tp 2")
    assert "vllm serve Qwen/Qwen3-30B-A3B " in found["command"]


def test_plugins_that_leave_ours_out_and_other_placements(model: str) -> None:
    found = report("--from", f"VLLM_PLUGINS=ascend vllm serve {model} --expert-placement-strategy round_robin -pcp 2")
    assert "VLLM_PLUGINS=ascend,megamoe" in steps(found)["set"]
    assert steps(found)["drop"] == ["--expert-placement-strategy round_robin", "--prefill-context-parallel-size 2"]
    assert found["command"].startswith("VLLM_PLUGINS=ascend,megamoe vllm serve ")


def test_profile_of_the_lines_environment_holds(model: str) -> None:
    found = report("--from", f"VLLM_MEGAMOE_PROFILE=a3@9.2 vllm serve {model} -tp 4")
    assert found["profile"] == "a3@9.2"
    # The line itself says so: nothing has to be added for it.
    assert not any("profile" in step for step in steps(found)["add"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("-tp 2", True),
        ("-pp 2", True),
        ("--performance-mode throughput", True),
        ("", False),
        ("-dp 2", False),
        ("-tp 2 --max-num-batched-tokens 512", False),
        ("-tp 2 --no-enable-chunked-prefill", False),
    ],
)
def test_rows_of_a_step_are_named_where_vllm_would_choose_others(flags: str, named: bool, model: str) -> None:
    """vLLM 0.32 on the CPU: 2048 x tensor x pipeline parallel, doubled in throughput mode (get_batch_defaults)."""
    found = report("--from", f"vllm serve {model} {flags}")
    assert ("--max-num-batched-tokens 2048" in steps(found)["add"]) is named
    assert found["command"].count("--max-num-batched-tokens") == (named or "512" in flags)


def test_a_product_that_the_line_simulates_holds(model: str) -> None:
    """As in the server (environment.choose_profile): a simulated product has its own limits."""
    found = report("--from", f"VLLM_MEGAMOE_SIMULATE=a3@9.1 vllm serve {model} -tp 4 -ep")
    assert found["profile"] == "a3@9.1"
    both = run("plan", "--from", f"VLLM_MEGAMOE_SIMULATE=a3@9.1 VLLM_MEGAMOE_PROFILE=a2@9.1 vllm serve {model}")
    assert both.exit_code == 2
    assert "VLLM_MEGAMOE_PROFILE='a2@9.1' with VLLM_MEGAMOE_SIMULATE='a3@9.1'" in both.stderr


@pytest.mark.parametrize("assignment", ["VLLM_MEGAMOE_TIMEOUT_S=abc", "VLLM_MEGAMOE_LOAD_LOG_STEPS=-1"])
def test_a_variable_that_the_server_rejects_is_a_violation(
    assignment: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = assignment.split("=")
    line = f"vllm serve {model} -q megamoe"
    assert report("--from", line)["holds"]
    (rule,) = report("--from", f"{assignment} {line}")["violations"]
    assert f"{name}={value!r}; expected" in rule["got"]
    monkeypatch.setenv(name, value)
    assert not report("--from", line)["holds"]
    assert report("--from", f"{name}=100 {line}")["holds"]


def test_a_profile_that_is_none_is_told_by_the_variables_name(model: str) -> None:
    told = run("plan", "--from", f"VLLM_MEGAMOE_PROFILE=a3 vllm serve {model}")
    assert told.exit_code == 2
    assert "VLLM_MEGAMOE_PROFILE='a3'; expected one of" in told.stderr


def test_wrong_options_of_the_line_are_violations(model: str) -> None:
    found = report("--from", f"""vllm serve {model} --additional-config '{{"megamoe": {{"use_cas": "auto"}}}}'""")
    assert not found["holds"]
    assert any("did you mean 'use_case'" in rule["got"] for rule in found["violations"])


@pytest.mark.parametrize("config", [{"megamo": {"use_case": "auto"}}, {"use_case": "auto"}])
def test_a_misplaced_option_is_a_violation_and_not_left_to_a_platform(config: dict[str, object], model: str) -> None:
    found = report("--from", f"vllm serve {model} --additional-config '{json.dumps(config | {'other': 1})}'")
    assert not found["holds"]
    (note,) = (note for note in found["notes"] if "not read here" in note)
    assert note.startswith("--additional-config: other: not read here")


def test_creation_and_call_say_the_same_once(model: str) -> None:
    """Both of a3@9.1 bound num_topk at 16 (torch_api.txt:440), each in its own source."""
    found = report(
        "--from", f"""vllm serve {model} -tp 2 --hf-overrides '{{"num_experts_per_tok": 20}}'""", "--profile", "a3@9.1"
    )
    (rule,) = (rule for rule in found["violations"] if rule["got"] == "num_topk=20")
    assert "csrc mega_moe.cpp" in rule["expected"]
    assert "arch22 tiling" in rule["expected"]
    assert rule["expected"].count("torch_api.txt:440") == 1


def test_what_cannot_be_corrected_is_still_violated(tmp_path: Path) -> None:
    wide = write_model(tmp_path, QWEN3_30B_A3B | {"moe_intermediate_size": 14336})
    found = report("--from", f"vllm serve {wide} -tp 8", "--profile", "a3@9.1")
    assert not found["holds"]
    assert "--quantization megamoe" in found["command"]
    assert "still violates" in run("plan", "--from", f"vllm serve {wide} -tp 8", "--profile", "a3@9.1").stdout


def test_no_line_at_all(model: str) -> None:
    found = run("plan", model, "--from", "python train.py")
    assert found.exit_code == 2
    assert "starts no vLLM server" in found.stderr


def test_sizes_beside_the_line_win_over_its_own(model: str) -> None:
    line = f"vllm serve {model} -tp 2 --max-num-batched-tokens 512 -q megamoe"
    given = ("--tp", "4", "--dp", "2", "--max-num-batched-tokens", "1024", "--dtype", "float32")
    found = report("--from", line, *given)
    assert steps(found)["set"] == ["--tensor-parallel-size 4", "--max-num-batched-tokens 1024"]
    assert steps(found)["add"] == ["--data-parallel-size 2", "--dtype float32", "--enable-expert-parallel"]
    engine = found["engine"]
    assert (engine["tensor_parallel"], engine["data_parallel"], engine["max_num_batched_tokens"]) == (4, 2, 1024)
    assert engine["dtype"] == "float32"
    # The line that says the same needs none of it.
    assert report("--from", found["command"], *given)["corrections"] == []


def test_a_pipeline_holds_the_layers_of_its_largest_stage(model: str) -> None:
    found = report("--from", f"vllm serve {model} -tp 2 -pp 5 -ep")
    # 48 layers over five stages: ten at most, each with 64 experts of three matrices of 768 x 2048 in bf16.
    assert found["memory"]["weights"] == 10 * 64 * 3 * 768 * 2048 * 2


def test_sleep_mode_goes_on_the_cpu_and_stays_for_an_npu(model: str) -> None:
    line = f"vllm serve {model} -tp 2 --enable-sleep-mode"
    (gone,) = [step for step in report("--from", line)["corrections"] if step["action"] == "drop"]
    assert gone["what"] == "--enable-sleep-mode"
    assert gone["why"].startswith("vLLM's CPU platform rejects sleep mode")
    kept = report("--from", line, "--profile", "a3@9.1")
    assert steps(kept)["drop"] == []
    assert "--enable-sleep-mode" in kept["command"]


def test_dynamic_balancing_stays_for_an_npu_and_other_layouts_go(model: str) -> None:
    config = '{"eplb_config": {"dynamic_eplb": true, "num_redundant_experts": 8}}'
    line = f"vllm serve {model} -tp 4 --enable-expert-parallel --additional-config '{config}'"
    found = report("--from", line, "--profile", "a3@9.2")
    assert [what for what in steps(found)["drop"] if "eplb" in what] == [
        "--additional-config eplb_config.num_redundant_experts (8)"
    ]
    assert '"dynamic_eplb": true' in found["command"]
    assert "num_redundant_experts" not in found["command"]
