"""`plan` says whether a model fits: memory of a rank, what is left for sequences, and the fewest ranks that hold it."""

from pathlib import Path
from typing import Any

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model

QWEN3_235B = {
    **QWEN3_30B_A3B,
    "hidden_size": 4096,
    "moe_intermediate_size": 1536,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "num_hidden_layers": 94,
}


@pytest.fixture
def large(tmp_path: Path) -> str:
    return write_model(tmp_path / "Qwen3-235B-A22B", QWEN3_235B)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return write_model(tmp_path / "Qwen3-30B-A3B", QWEN3_30B_A3B)


def wrong(found: dict[str, Any]) -> list[str]:
    return [violation["where"] for violation in found["violations"]]


def test_c11_more_weights_than_a_die_has_do_not_hold(large: str) -> None:
    found = report(large, "--tp", "2", "--profile", "a3@9.1")
    assert wrong(found) == ["memory"]
    violation = found["violations"][0]
    assert violation["got"].startswith("219.0 GiB of weights")
    assert "0.92 of 60.97 GiB of a device (a3)" in violation["expected"]
    smallest = found["fit"]["smallest"]
    assert (
        f"tensor parallel {smallest['tensor_parallel']} x data parallel {smallest['data_parallel']}"
        in (violation["remedy"])
    )
    sizes = ("--tp", str(smallest["tensor_parallel"]), "--dp", str(smallest["data_parallel"]))
    assert report(large, *sizes, "--profile", "a3@9.1")["holds"]
    ranks = smallest["tensor_parallel"] * smallest["data_parallel"]
    for tensor in (1, 2, 4, 8):
        if ranks // 2 % tensor == 0:
            half = report(large, "--tp", str(tensor), "--dp", str(ranks // 2 // tensor), "--profile", "a3@9.1")
            assert wrong(half) == ["memory"]


def test_left_for_the_cache_is_what_the_rest_leaves(small: str) -> None:
    fit = report(small, "--tp", "4", "--profile", "a3@9.1")["fit"]
    beside = sum(fit[name] for name in ("window", "workspace", "communicators", "step"))
    assert fit["weights_total"] == pytest.approx(sum(fit["weights"].values()), abs=8)
    assert fit["budget"] == int(0.92 * 60.97 * 2**30)
    assert fit["left"] == fit["budget"] - fit["weights_total"] - beside
    assert fit["sequence"] == 48 * 40960 * 2 * 128 * 2  # one of four heads
    assert fit["sequences"] == fit["left"] // fit["sequence"]
    two = report(small, "--tp", "4", "--dp", "2", "--profile", "a3@9.1")["fit"]
    assert two["sequences"] == 2 * (two["left"] // two["sequence"])


def test_the_users_numbers_decide(small: str) -> None:
    at = ("--tp", "2", "--profile", "a3@9.1")
    assert report(small, *at)["holds"]
    assert wrong(report(small, *at, "--device-memory", "32")) == ["memory"]
    assert wrong(report(small, *at, "--memory-utilization", "0.5")) == ["memory"]
    assert report(small, *at, "--device-memory", "128", "--memory-utilization", "0.5")["holds"]
    assert (
        report(small, *at, "--kv-cache-dtype", "int8")["fit"]["sequence"] * 2 == report(small, *at)["fit"]["sequence"]
    )
    assert run("plan", small, "--profile", "a3@9.1", "--device", "a2-64").exit_code == 2
    assert run("plan", small, "--profile", "a2@9.1", "--device", "a2-32").exit_code == 0


def test_without_a_device_nothing_is_judged(large: str) -> None:
    fit = report(large)["fit"]
    assert (fit["device"], fit["holds"], fit["left"], fit["sequences"]) == (None, None, None, None)
    assert fit["parameters"] == 235_093_634_560
    assert report(large)["holds"]
    assert "name a device" in run("plan", large).stdout
    assert wrong(report(large, "--device-memory", "64")) == ["memory"]


def test_a_length_that_nobody_named_is_lowered_and_written_into_the_line(tmp_path: Path) -> None:
    model = write_model(tmp_path / "long", {**QWEN3_30B_A3B, "max_position_embeddings": 4_000_000})
    found = report(model, "--tp", "2", "--profile", "a3@9.1")
    length = found["fit"]["max_model_len"]
    assert found["holds"]
    assert 100_000 < length < 4_000_000
    assert f"--max-model-len {length}" in found["command"]
    assert any("4000000 tokens does not fit" in note for note in found["notes"])
    named = report(model, "--tp", "2", "--profile", "a3@9.1", "--max-model-len", "4000000")
    assert wrong(named) == ["memory"]
    assert f"Set --max-model-len to {named['fit']['longest']} or less" in named["violations"][0]["remedy"]
    line = f"vllm serve {model} -tp 2 -ep -q megamoe"
    assert wrong(report("--from", line, "--profile", "a3@9.1")) == ["memory"]
    assert report("--from", f"{line} --max-model-len {length}", "--profile", "a3@9.1")["holds"]
    longest = named["fit"]["longest"]
    assert report(model, "--tp", "2", "--profile", "a3@9.1", "--max-model-len", str(longest))["holds"]
    assert not report(model, "--tp", "2", "--profile", "a3@9.1", "--max-model-len", str(longest + 1))["holds"]


def test_a_line_says_memory_too(small: str) -> None:
    line = (
        f"HCCL_BUFFSIZE=1024 vllm serve {small} -tp 2 -ep -q megamoe --gpu-memory-utilization 0.9 --max-model-len 32k "
        "--max-num-seqs 16 --kv-cache-dtype fp8"
    )
    fit = report("--from", line, "--profile", "a3@9.1")["fit"]
    assert (fit["utilization"], fit["max_model_len"], fit["cache_bits"]) == (0.9, 32000, 8)
    assert fit["window"] == 2 * 1024 * 2**20  # both halves of what the line sets, not of what the plan needs
    bad = line.replace("0.9", "1.9")
    found = run("plan", "--from", bad, "--profile", "a3@9.1")
    assert found.exit_code == 2
    assert "--gpu-memory-utilization '1.9'" in found.stderr


def test_ranks_chosen_here_hold_the_model(large: str, small: str) -> None:
    found = report(large, "--profile", "a3@9.1")
    assert found["holds"]
    assert found["engine"]["chosen_here"]
    assert found["engine"]["ep_size"] == 16
    assert report(small, "--profile", "a3@9.1")["engine"]["ep_size"] == 8


@pytest.mark.parametrize(
    ("form", "use_case", "share"),
    [("bf16", "a16w16", 1.0), ("msmodelslim-w8a8", "a8w8-int", 0.5), ("msmodelslim-w4a8", "a8w4-int", 0.25)],
)
def test_a_format_that_one_does_not_have_yet(large: str, form: str, use_case: str, share: float) -> None:
    found = report(large, "--as", form, "--tp", "8", "--dp", "2", "--profile", "a3@9.2")
    assert found["holds"]
    assert {group["use_case"] for group in found["groups"]} == {use_case}
    plain = 94 * 8 * 3 * 4096 * 1536 * 2
    assert found["fit"]["weights"]["routed experts"] == pytest.approx(plain * share, rel=0.01)
    attention = report(large, "--tp", "8", "--dp", "2", "--profile", "a3@9.2")["fit"]["weights"]["attention"]
    assert found["fit"]["weights"]["attention"] == pytest.approx(attention * max(share, 0.5), rel=0.01)


def test_a_quantised_config_is_planned_as_another_format(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    model = write_model(tmp_path / "fp8", {**QWEN3_30B_A3B, "quantization_config": fp8})
    assert not report(model, "--tp", "2", "--profile", "a3@9.2")["holds"]
    assert report(model, "--tp", "2", "--profile", "a3@9.2", "--as", "msmodelslim-w8a8")["holds"]
    found = run("plan", model, "--as", "msmodelslim-w8")
    assert found.exit_code == 2
    assert "did you mean msmodelslim-w8a8" in found.stderr


def test_bounds_are_said_and_explained(small: str) -> None:
    at = (small, "--tp", "8", "--dp", "2", "--profile", "a3@9.1")
    found = report(*at, "--explain")
    bounds = found["bounds"]
    for step in (bounds["decode"], bounds["prefill"]):
        assert step["seconds"] == max(step["memory"], step["compute"], step["wire"])
        assert step["memory"] == pytest.approx(step["read"] / 1.6e12)
        assert step["wire"] == pytest.approx(step["sent"] / 196e9)
        assert step["compute"] == pytest.approx(step["multiplied"]["bf16"] / 376e12)
    assert bounds["prefill"]["tokens_per_second"] == pytest.approx(2 * 2048 / bounds["prefill"]["seconds"])
    assert any("GB/s =" in line for line in found["explained"])
    assert any("CloudMatrix384" in line for line in found["explained"])
    text = run("plan", *at).stdout
    assert "at best, no estimate" in text
    assert "ms at least" in text
    assert "tokens/s at most" in text
    faster = report(*at, "--memory-bandwidth", "3200", "--link-bandwidth", "392", "--peak", "752")["bounds"]
    assert faster["decode"]["seconds"] == pytest.approx(bounds["decode"]["seconds"] / 2)
    assert report(small, "--tp", "2", "--profile", "a3@9.1")["explained"] == []


def test_a_peak_that_no_source_gives_is_said(small: str) -> None:
    step = report(small, "--tp", "4", "--profile", "950@9.2", "--use-case", "a8w8-fp", "--requant", "allow")["bounds"]
    assert step["prefill"]["unknown"] == ["bf16"]
    assert "whose peak is not known" in run("plan", small, "--tp", "4", "--profile", "950@9.2").stdout


def test_a_cache_that_the_config_does_not_describe_is_not_counted_as_nothing(tmp_path: Path) -> None:
    """Two Mamba layers without their sizes: to say of 55 GiB that they hold 0 sequences would be wrong."""
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "MEME",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 1024,
        "mlp_hidden_act": "relu2",
        "num_attention_heads": 16,
        "vocab_size": 1000,
    }
    given = (write_model(tmp_path / "mamba", config), "--profile", "a3@9.2", "--tp", "2")
    fit = report(*given)["fit"]
    assert (fit["sequence"], fit["sequences"]) == (0, None)
    text = run("plan", *given).stdout
    assert "what a sequence keeps is not known from this config" in text
    assert "sequences of" not in text
