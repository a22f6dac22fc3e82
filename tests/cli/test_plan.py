"""`plan`: figures worked out by hand from the models' configs and the operator's documents."""

from pathlib import Path
from typing import Any

import pytest
from cli.command import DEEPSEEK_V3_BF16, QWEN3_30B_A3B, report, run, write_model

GIB = 1 << 30


def violated(found: dict[str, Any], words: str) -> list[dict[str, str]]:
    return [rule for rule in found["violations"] if words in rule["got"]]


def test_qwen3_30b_is_padded_on_a3(tmp_path: Path) -> None:
    found = report(write_model(tmp_path, QWEN3_30B_A3B), "--profile", "a3@9.1", "--tp", "8", "--dp", "2")
    assert found["holds"]
    assert found["moe_layers"] == 48
    assert found["engine"]["ep_size"] == 16
    # torch_api.txt: I in [1024, 3072] and a multiple of 512; 1024 / 768 = 4/3.
    (group,) = found["groups"]
    assert group["layers"] == "0-47"
    assert group["use_case"] == "a16w16"
    assert group["padding"]["intermediate_hidden"] == 1024
    assert group["padding"]["hidden"] == 2048
    assert group["padding"]["overhead"] == pytest.approx(1 / 3, abs=1e-4)
    # 128 experts over 16 ranks; three matrices of 2048 x 256 more, bf16.
    assert group["experts_per_rank"] == 8
    assert group["padding"]["bytes_per_rank"] == 48 * 8 * 3 * 2048 * 256 * 2
    # All layers: 48 x 8 experts x 3 x 2048 x 1024 x 2 bytes = 4.5 GiB.
    assert found["memory"]["weights"] == 4.5 * GIB
    # The window is the communicator's, both halves of it, and not each layer's.
    assert found["memory"]["window"] == 2 * found["hccl_buffsize_mb"] * 2**20
    # 2048 tokens of each data-parallel rank, split over 8 tensor-parallel ones.
    assert group["rows"]["per_step"] == 256
    # torch_api.txt, 9.1.0's host code: 2 to 32 ranks; all of them divide 128.
    assert found["ep_sizes"] == [2, 4, 8, 16, 32]
    # bf16 rows: 8 experts x 2048 x 2 bytes, there and back.
    assert found["wire"]["dispatch"] == found["wire"]["combine"] == 8 * 2048 * 2
    assert found["wire"]["combine_with_dedup"] is None
    assert found["wire"]["dispatch_with_router_weights"] is None
    assert found["wire"]["remote_share"] == pytest.approx(15 / 16)


def test_line_to_copy_holds_all_that_the_plan_depends_on(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "Qwen", QWEN3_30B_A3B)
    sizes = ("--tp", "8", "--dp", "2", "--max-num-batched-tokens", "32768", "--workspace-budget-gib", "64")
    found = report(folder, "--profile", "a3@9.1", *sizes)
    # Above 2 x 4096 rows x 8 experts x 2048 x 2 bytes, rows there and back: 256 MiB in each half.
    assert 256 < found["hccl_buffsize_mb"] < 300
    assert found["command"] == (
        f"HCCL_BUFFSIZE={found['hccl_buffsize_mb']} vllm serve {folder} --quantization megamoe "
        "--tensor-parallel-size 8 --data-parallel-size 2 --enable-expert-parallel --max-num-batched-tokens 32768 "
        '--additional-config \'{"megamoe": {"profile": "a3@9.1", "workspace_budget_gib": 64.0}}\''
    )


def test_window_below_hccls_default_leaves_the_default(tmp_path: Path) -> None:
    found = report(write_model(tmp_path, QWEN3_30B_A3B), "--profile", "a3@9.1", "--tp", "8")
    assert found["hccl_buffsize_mb"] < 200
    assert found["command"].startswith("HCCL_BUFFSIZE=200 vllm serve ")


def test_line_asks_for_bfloat16_where_the_config_says_otherwise(tmp_path: Path) -> None:
    half = report(write_model(tmp_path / "half", QWEN3_30B_A3B | {"torch_dtype": "float16"}))
    assert "--dtype bfloat16" in half["command"]
    assert "--dtype" not in report(write_model(tmp_path / "brain", QWEN3_30B_A3B))["command"]


def test_line_names_the_profile_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_PROFILE", "a3@9.2")
    found = report(write_model(tmp_path, QWEN3_30B_A3B))
    assert found["profile"] == "a3@9.2"
    assert '{"megamoe": {"profile": "a3@9.2"}}' in found["command"]


def test_deepseek_v3_fits_a3(tmp_path: Path) -> None:
    found = report(write_model(tmp_path, DEEPSEEK_V3_BF16), "--profile", "a3@9.1", "--tp", "16", "--dp", "2", "--draft")
    assert found["holds"]
    assert "--speculative-config" in found["command"]
    assert [group["layers"] for group in found["groups"]] == ["3-60", "61"]
    decoder, draft = found["groups"]
    assert draft["draft"]
    assert not decoder["draft"]
    assert decoder["padding"] is None
    # operator_readme.txt: shared experts on Ascend 950 only.
    assert decoder["shared_experts"]["mode"] == "vllm"
    assert "A3" in decoder["shared_experts"]["reason"]
    # 59 layers x 8 experts x 3 x 7168 x 2048 x 2 bytes; 16 of them, on 16 ranks, are more than a die has.
    assert found["memory"]["weights"] == 59 * 8 * 3 * 7168 * 2048 * 2
    half = report(str(tmp_path), "--profile", "a3@9.1", "--tp", "16", "--draft")
    assert [rule["where"] for rule in half["violations"]] == ["memory"]


def test_draft_layers_are_left_out_and_counted_without_speculation(tmp_path: Path) -> None:
    found = report(write_model(tmp_path, DEEPSEEK_V3_BF16), "--profile", "a3@9.1", "--tp", "16", "--dp", "2")
    assert found["moe_layers"] == 58
    assert found["drafts_left_out"] == 1
    assert "--speculative-config" not in found["command"]
    assert "--draft plans them" in run("plan", str(tmp_path)).stdout
    line = f"vllm serve {tmp_path} -tp 16"
    assert report("--from", line)["moe_layers"] == 58
    assert report("--from", f"{line} --speculative-config.method mtp")["moe_layers"] == 59


def test_deepseek_v3_fuses_its_shared_expert_on_950(tmp_path: Path) -> None:
    model = write_model(tmp_path, DEEPSEEK_V3_BF16)
    found = report(model, "--profile", "950@9.2", "--tp", "16", "--requant", "allow")
    decoder = found["groups"][0]
    assert decoder["use_case"] == "a8w8-fp"
    assert decoder["shared_experts"] == {"mode": "fused", "pieces": 1, "reason": "", "use_case": "a8w8-fp"}
    off = report(model, "--profile", "950@9.2", "--tp", "16", "--requant", "allow", "--fuse-shared-experts", "off")
    assert off["groups"][0]["shared_experts"]["mode"] == "vllm"
    # One expert less on each of 58 layers: codes, and E8M0 scales of 32 (I = 2048, H = 7168 fill their pairs).
    expert = 3 * 7168 * 2048 + 2 * 2048 * 7168 // 32 + 7168 * 2048 // 32
    assert found["memory"]["weights"] - off["memory"]["weights"] == 58 * expert
    assert found["hccl_buffsize_mb"] is None
    assert "HCCL" not in found["command"]
    # operator_readme.txt, combineCommMode: one row of bf16 from each rank with an expert of the token, at most k = 8.
    assert found["wire"]["combine_with_dedup_worst"] == 8 * 7168 * 2
    assert found["wire"]["combine_with_dedup"] < found["wire"]["combine_without_dedup"] == 8 * 7168 * 2


def test_deduplicated_combine_moves_the_expected_number_of_rows(tmp_path: Path) -> None:
    model = write_model(tmp_path, QWEN3_30B_A3B | {"num_experts": 4, "num_experts_per_tok": 2})
    found = report(model, "--profile", "950@9.2", "--tp", "2", "--requant", "allow", "--combine-comm-mode", "1")
    # 2 of 4 experts, two on each rank: both on one rank in 2 of 6 cases, so 2 - 1/3 ranks are expected.
    assert found["wire"]["combine_with_dedup"] == pytest.approx(5 / 3 * 2048 * 2, abs=1)
    assert found["wire"]["combine"] == found["wire"]["combine_with_dedup"]


def test_mixtral_is_too_wide_for_a3(tmp_path: Path) -> None:
    mixtral = {
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    found = report(write_model(tmp_path, mixtral), "--profile", "a3@9.1")
    (rule,) = violated(found, "intermediate_hidden = 14336")
    # facts: 14336 = 7 x 2048, which makes 56 experts and topk 14.
    assert "7 of 2048" in rule["remedy"]
    assert "56 experts" in rule["remedy"]
    assert "topk 14" in rule["remedy"]
    (group,) = found["groups"]
    assert group["runs"] == "rejected"
    assert group["use_case"] is None
    assert found["command"] is None
    assert found["ep_sizes"] == [2, 4, 8]


def test_models_that_the_operator_cannot_compute(tmp_path: Path) -> None:
    llama = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 4,
            "interleave_moe_layer_step": 1,
            "hidden_act": "silu",
        },
    }
    found = report(write_model(tmp_path / "llama", llama), "--profile", "a3@9.2")
    assert violated(found, "router weight multiplies the expert's input")
    assert violated(found, "intermediate_hidden = 8192")
    nemotron = {
        "architectures": ["NemotronHForCausalLM"],
        "hidden_size": 2048,
        "moe_intermediate_size": 1024,
        "n_routed_experts": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "ME*E",
        "mlp_hidden_act": "relu2",
    }
    found = report(write_model(tmp_path / "nemotron", nemotron), "--profile", "a3@9.2")
    assert violated(found, "relu2")
    assert found["groups"][0]["layers"] == "1, 3"


def test_default_ranks_are_one_without_a_product(tmp_path: Path) -> None:
    model = write_model(tmp_path, QWEN3_30B_A3B)
    alone = report(model)
    assert alone["profile"] == "none"
    assert alone["engine"]["ep_size"] == 1
    assert "--enable-expert-parallel" not in alone["command"]
    assert alone["memory"] == {"weights": 48 * 128 * 3 * 2048 * 768 * 2, "window": 0, "workspace": 0}
    chosen = report(model, "--profile", "a3@9.1")["engine"]
    assert chosen["chosen_here"]
    assert chosen["ep_size"] == 8
    assert report(model, "--profile", "a3@9.1", "--tp", "4")["engine"]["chosen_here"] is False


def test_wrong_number_of_ranks_is_violated_and_the_legal_ones_are_said(tmp_path: Path) -> None:
    found = report(write_model(tmp_path, QWEN3_30B_A3B), "--profile", "a3@9.1", "--tp", "3")
    assert not found["holds"]
    assert found["violations"]
    assert found["ep_sizes"] == [2, 4, 8, 16, 32]


def test_every_rule_comes_at_once_with_its_remedy(tmp_path: Path) -> None:
    model = write_model(tmp_path, QWEN3_30B_A3B | {"moe_intermediate_size": 512})
    found = report(model, "--profile", "a3@9.1", "--dtype", "float16", "--max-recv-token-num", "8")
    assert len(found["violations"]) >= 3
    assert all(rule["remedy"] for rule in found["violations"])
    text = run("plan", model, "--profile", "a3@9.1", "--dtype", "float16", "--max-recv-token-num", "8").stdout
    for rule in found["violations"]:
        assert rule["remedy"] in text


def test_tables_say_what_the_json_says(tmp_path: Path) -> None:
    text = run("plan", write_model(tmp_path, QWEN3_30B_A3B), "--profile", "a3@9.1", "--tp", "8").stdout
    assert "The plan holds under profile a3@9.1 on 8 ranks." in text
    assert "intermediate_hidden 768 -> 1024: +33% weights and FLOPs, 2.25 GiB a rank" in text
    assert "weights 9.00 GiB" in text
    assert "2, 4, 8, 16, 32" in text
    # The line to copy is one line, however narrow the terminal is.
    narrow = run("plan", str(tmp_path), "--profile", "a3@9.1", "--tp", "8", env={"COLUMNS": "40"}).stdout
    line = narrow.splitlines()[-1]
    assert line.startswith("HCCL_BUFFSIZE=")
    assert line.endswith('\'{"megamoe": {"profile": "a3@9.1"}}\'')


def test_notes_say_what_is_worth_knowing(tmp_path: Path) -> None:
    unknown = report(write_model(tmp_path / "a", QWEN3_30B_A3B | {"architectures": ["BrandNewForCausalLM"]}))
    assert any("BrandNewForCausalLM stands in no table" in note for note in unknown["notes"])
    assert unknown["moe_layers"] == 48
    known = write_model(tmp_path / "b", QWEN3_30B_A3B)
    assert report(known)["notes"] == []
    (config,) = report("--from", f"vllm serve {known} --config-format mistral")["notes"]
    assert "--config-format mistral is not read" in config


def test_pipeline_and_formats_are_named(tmp_path: Path) -> None:
    fp8 = DEEPSEEK_V3_BF16 | {
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    }
    found = report(write_model(tmp_path, fp8), "--profile", "a3@9.1", "--tp", "16")
    assert not found["holds"]
    (form,) = found["formats"]
    assert form["name"] == "fp8-block"
    assert form["loads"] is True
    text = run("plan", str(tmp_path), "--profile", "a3@9.1").stdout
    assert "FP8 in 128 x 128 blocks" in text
    assert "cannot be read" not in text


def test_a_format_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    blocks = QWEN3_30B_A3B | {"quantization_config": {"quant_method": "mxfp4"}}
    model = write_model(tmp_path, blocks)
    (form,) = report(model)["formats"]
    assert form["loads"] is False
    text = run("plan", model).stdout
    assert "gpt-oss MXFP4 blocks (cannot be read)" in text
    assert "its experts carry biases" in " ".join(text.split())
