"""Command lines and configs of public reports, rebuilt small: what `plan` says of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.command import DEEPSEEK_V3_BF16, QWEN3_30B_A3B, report, run, write_model

SMALL = DEEPSEEK_V3_BF16 | {
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "intermediate_size": 4096,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
}
SIZES = {"hidden_size": 2048, "num_hidden_layers": 4, "torch_dtype": "bfloat16"}
DROPPED_BY_VLLM = SIZES | {
    "architectures": ["Dots1ForCausalLM"],
    "model_type": "dots1",
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}


def steps(found: dict[str, Any], action: str) -> dict[str, str]:
    return {step["what"]: step["why"] for step in found["corrections"] if step["action"] == action}


def line(model: str, *flags: str) -> list[str]:
    return ["--from", " ".join(["vllm serve", model, "--quantization megamoe", *flags])]


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    return write_model(tmp_path / "qwen", QWEN3_30B_A3B)


# Which models split rows is compared with vLLM's in tests/lanes; here, that the answer depends on it.
@pytest.mark.parametrize(
    ("config", "holds"),
    [
        (SMALL, True),
        (SMALL | {"architectures": ["Glm4MoeForCausalLM"]}, False),
        (SMALL | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, False),
        (QWEN3_30B_A3B, True),
        (QWEN3_30B_A3B | {"architectures": ["Qwen2MoeForCausalLM"]}, False),
    ],
)
def test_c2_models_whose_rows_are_not_split(config: dict[str, Any], holds: bool, tmp_path: Path) -> None:
    model = write_model(tmp_path, config)
    both = report(model, "--tp", "2", "--dp", "2")
    assert both["holds"] is holds
    assert any("rows replicated" in rule["got"] for rule in both["violations"]) is not holds
    assert report(model, "--tp", "4")["holds"]
    assert report(model, "--dp", "4")["holds"]


def test_c2_a_model_of_which_it_is_not_known(tmp_path: Path) -> None:
    model = write_model(tmp_path, SMALL | {"architectures": ["BrandNewForCausalLM"]})
    found = report(model, "--tp", "2", "--dp", "2")
    assert found["holds"]
    assert any("is not known here" in note for note in found["notes"])
    assert not any("is not known here" in note for note in report(model, "--tp", "4")["notes"])


QUANTISED_MTP = SMALL | {
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [f"model.layers.{i}.mlp" for i in range(1, 4)],
    }
}


@pytest.mark.parametrize(
    ("settings", "drafts"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3}, 0),
        ({"method": "suffix", "num_speculative_tokens": 3}, 0),
        ({"method": "mtp", "num_speculative_tokens": 1}, 1),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, 1),
        ({"method": "eagle3", "model": "no/such-model", "num_speculative_tokens": 1}, 0),
    ],
)
def test_c4_only_loaded_layers_count(settings: dict[str, Any], drafts: int, tmp_path: Path) -> None:
    found = report(*line(write_model(tmp_path, QUANTISED_MTP), f"--speculative-config '{json.dumps(settings)}'"))
    assert found["holds"] is (drafts == 0)
    assert found["moe_layers"] == 3 + drafts
    assert found["drafts_left_out"] == 1 - drafts


def test_c4_a_draft_model_of_its_own_is_read(tmp_path: Path) -> None:
    target, draft = write_model(tmp_path / "target", SMALL), write_model(tmp_path / "draft", QWEN3_30B_A3B)
    by_itself = report(*line(target, f"-sc.method draft_model -sc.model {draft}"))
    assert by_itself["moe_layers"] == 3
    assert any(f"The draft model {draft} has 48 layer(s) with experts" in note for note in by_itself["notes"])
    through_us = report(*line(target, f"-sc.method draft_model -sc.model {draft} -sc.quantization megamoe"))
    assert through_us["moe_layers"] == 3 + 48
    assert [group["layers"] for group in through_us["groups"] if group["draft"]] == ["0-47"]
    # MTP layers in a folder of their own are built with the target's quantisation.
    mtp = write_model(tmp_path / "mtp", SMALL | {"architectures": ["DeepSeekMTPModel"]})
    assert report(*line(target, f"-sc.model {mtp}"))["moe_layers"] == 4


def test_c5_experts_in_a_section_and_by_default(tmp_path: Path) -> None:
    dbrx = {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "d_model": 2048,
        "n_layers": 4,
        "torch_dtype": "bfloat16",
        "ffn_config": {"ffn_hidden_size": 1024, "moe_num_experts": 16, "moe_top_k": 4},
    }
    (group,) = report(write_model(tmp_path / "dbrx", dbrx))["groups"]
    assert (group["layers"], group["num_experts"], group["topk"], group["intermediate_hidden"]) == ("0-3", 16, 4, 1024)
    # MixtralConfig of transformers: 8 experts, 2 per token, width 14336.
    plain = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096}
    found = report(write_model(tmp_path / "plain", plain | {"num_hidden_layers": 2, "torch_dtype": "bfloat16"}))
    (group,) = found["groups"]
    assert (group["num_experts"], group["topk"], group["intermediate_hidden"]) == (8, 2, 14336)
    (note,) = [note for note in found["notes"] if "leaves out" in note]
    assert all(
        text in note for text in ("num_local_experts (8)", "num_experts_per_tok (2)", "intermediate_size (14336)")
    )


def test_c5_names_that_are_not_known_are_told(tmp_path: Path) -> None:
    new = SIZES | {"architectures": ["BrandNewForCausalLM"], "blocks": {"num_specialists": 8, "expert_widths": [1, 2]}}
    found = report(write_model(tmp_path, new))
    assert found["moe_layers"] == 0
    assert found["summary"].startswith("No experts under names known here")
    assert any("its config has blocks.expert_widths" in note for note in found["notes"])


def test_c6_overrides_and_another_config(qwen: str, tmp_path: Path) -> None:
    changes = {"num_experts_per_tok": 20}
    found = report(*line(qwen, "-tp 2 -ep", f"--hf-overrides '{json.dumps(changes)}'"), "--profile", "a3@9.1")
    assert found["groups"][0]["topk"] == 20
    assert not found["holds"]
    other = write_model(tmp_path / "other", QWEN3_30B_A3B | {"num_experts": 64})
    assert report(*line(qwen, f"--hf-config-path {other}"))["groups"][0]["num_experts"] == 64
    absent = report(*line(qwen, "--hf-config-path no/such-config"))
    assert absent["groups"][0]["num_experts"] == 128
    assert any("--hf-config-path no/such-config is not read" in note for note in absent["notes"])


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--model-impl transformers", "vLLM's own class"),
        ("--config-format mistral", "reads config.json"),
        ('--quantization-config \'{"linear": "fp8"}\'', "--quantization-config"),
        ("--no-enable-chunked-prefill", "give --max-num-batched-tokens"),
        ("--additional-config '{\"refresh\": true}'", "refresh: not read here"),
    ],
)
def test_c6_what_is_not_read_is_named(flag: str, said: str, qwen: str) -> None:
    assert any(said in note for note in report(*line(qwen, flag))["notes"])


def test_c6_misspelt_and_unknown_flags(qwen: str) -> None:
    misspelt = run("plan", *line(qwen, "--tensor-paralel-size 2"))
    assert misspelt.exit_code == 2
    assert "did you mean --tensor-parallel-size" in misspelt.stderr
    found = report(*line(qwen, "--frobnicate 3 --num-redundant-experts 4"))
    gone = steps(found, "drop")
    assert set(gone) == {"--frobnicate 3", "--num-redundant-experts 4"}
    assert all("No flag of vLLM 0.30.0 or 0.32.0" in why for why in gone.values())
    assert "frobnicate" not in found["command"]


def test_c10_what_others_need_is_dropped_with_a_reason(qwen: str) -> None:
    config = {"enable_fused_mc2": 1, "multistream_overlap_shared_expert": True, "megamoe": {"profile": "none"}, "x": 1}
    found = report(
        "--from",
        f"VLLM_ASCEND_ENABLE_FUSED_MC2=1 vllm serve {qwen} --enable-sleep-mode --sleep-preserve-parameter-names a b "
        "--moe-backend deep_gemm_mega_moe --all2all-backend deepep_low_latency --enable-elastic-ep --port 80 "
        f"--kernel-config.moe_backend triton --additional-config '{json.dumps(config)}'",
    )
    gone = steps(found, "drop")
    assert set(gone) == {
        "VLLM_ASCEND_ENABLE_FUSED_MC2=1",
        "--enable-sleep-mode",
        "--sleep-preserve-parameter-names a b",
        "--moe-backend deep_gemm_mega_moe",
        "--all2all-backend deepep_low_latency",
        "--enable-elastic-ep",
        "--kernel-config moe_backend ('triton')",
        "--additional-config enable_fused_mc2 (1)",
        "--additional-config multistream_overlap_shared_expert (True)",
    }
    assert all(gone.values())
    assert found["command"] == (
        f"vllm serve {qwen} --port 80 --additional-config '{json.dumps({'megamoe': {'profile': 'none'}, 'x': 1})}' "
        "--quantization megamoe"
    )
    assert report("--from", found["command"])["corrections"] == []


@pytest.mark.parametrize("flag", ["--moe-backend auto", "--all2all-backend allgather_reducescatter"])
def test_c10_a_default_that_is_spelt_out_stays(flag: str, qwen: str) -> None:
    found = report(*line(qwen, flag))
    assert flag in found["command"]
    assert steps(found, "drop") == {}


def test_c12_a_value_per_modality_blames_no_file(tmp_path: Path) -> None:
    ernie = SIZES | {
        "architectures": ["Ernie4_5_VLMoeForConditionalGeneration"],
        "moe_num_experts": [64, 64],
        "moe_intermediate_size": [1536, 512],
        "moe_k": 6,
    }
    found = run("plan", write_model(tmp_path, ernie))
    assert found.exit_code == 2
    assert "moe_intermediate_size = [1536, 512], one value for each kind of layer or input" in found.stderr
    assert "Correct" not in found.stderr


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SMALL | {"moe_layer_freq": [0, 1]}, "moe_layer_freq has 2 entries for 4 decoder layers"),
        (
            SMALL | {"architectures": ["ExaoneMoEForCausalLM"], "mlp_layer_types": ["sparse"] * 3},
            "mlp_layer_types has 3 entries for 4 decoder layers",
        ),
        (
            SMALL | {"architectures": ["Step3p5ForCausalLM"], "swiglu_limits": [0, 7.0], "share_expert_dim": 8},
            "swiglu_limits has 2 entries for 4 decoder layers",
        ),
        (
            SMALL | {"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "MEM"},
            "hybrid_override_pattern has 3 entries for 4 decoder layers",
        ),
    ],
)
def test_c13_a_list_that_is_too_short_names_both_lengths(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = run("plan", write_model(tmp_path, config))
    assert found.exit_code == 2
    assert words in found.stderr


def test_c14_an_architecture_that_vllm_has_dropped(tmp_path: Path, qwen: str) -> None:
    # vLLM 0.32, models/registry.py, _PREVIOUSLY_SUPPORTED_MODELS.
    model = write_model(tmp_path / "dropped", DROPPED_BY_VLLM)
    found = report(model, "--tp", "2")
    assert found["in_vllm"] == []
    (note,) = [note for note in found["notes"] if "no class" in note]
    assert note.startswith(
        "vLLM 0.30.0 and 0.32.0 have no class Dots1ForCausalLM; the last release with one is 0.23.0."
    )
    assert "Serve it with, where vLLM has this architecture" in run("plan", model, "--tp", "2").stdout
    assert report(qwen)["in_vllm"] == ["0.30.0", "0.32.0"]
    assert "Serve it with\n" in run("plan", qwen).stdout


def test_c15_experts_without_a_gate_are_one_format_told_once(tmp_path: Path) -> None:
    layers = {
        f"backbone.layers.{layer}.mixer.experts.{expert}.{part}": {"quant_algo": "W4A16_NVFP4"}
        for layer in (1, 3)
        for expert in range(8)
        for part in ("up_proj", "down_proj")
    }
    config = SIZES | {
        "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": "MEME",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 1024,
        "mlp_hidden_act": "relu2",
    }
    described = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    model = write_model(tmp_path / "whole", config, hf_quant_config=described)
    found = report(model, "--tp", "2")
    assert [form["name"] for form in found["formats"]] == ["modelopt-w4a16-nvfp4"]
    assert sum("from modelopt-w4a16-nvfp4 experts is lossy" in rule["got"] for rule in found["violations"]) == 1
    # One expert that is not quantised, in every layer: one sentence for all of them, in the title line too.
    for layer in (1, 3):
        del layers[f"backbone.layers.{layer}.mixer.experts.5.up_proj"]
    found = report(write_model(tmp_path / "mixed", config, hf_quant_config=described), "--tp", "2")
    mixed = "mixed: modelopt-w4a16-nvfp4 (0.up_proj), bf16 (5.up_proj)"
    assert [form["label"] for form in found["formats"]] == [mixed]
    assert sum("mixed" in rule["got"] for rule in found["violations"]) == 1


def test_5_9_dead_keys_and_options_out_of_their_block(qwen: str) -> None:
    for config in ({"megamo": {"use_case": "auto"}}, {"use_case": "a8w8-int", "requant": "allow"}):
        found = report(*line(qwen, f"--additional-config '{json.dumps(config)}'"))
        assert not found["holds"]
        assert any(next(iter(config)) in rule["got"] for rule in found["violations"])
