"""Which layers are MoE layers, by each way in which configs say it; the numbers are counted by hand."""

from typing import Any

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.read_config.reader import read_layers

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "intermediate_size": 160,
}


def numbers(architecture: str, **keys: Any) -> list[int]:
    config = {**SIZES, "architectures": [architecture], **keys}
    return [layer.index for layer in read_layers({k: v for k, v in config.items() if v is not None})]


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("DeepseekV3ForCausalLM", {"first_k_dense_replace": 3, "moe_layer_freq": 1}, [3, 4, 5, 6, 7]),
        ("DeepseekV3ForCausalLM", {"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4, 6]),
        ("DeepseekV3ForCausalLM", {"first_k_dense_replace": 0}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("MiMoV2FlashForCausalLM", {"moe_layer_freq": [0, 1, 1, 0, 0, 0, 1, 0]}, [1, 2, 6]),
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 2, "mlp_only_layers": [5]}, [1, 3, 7]),
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 0}, []),
        ("Llama4ForCausalLM", {"interleave_moe_layer_step": 4, "num_local_experts": 4}, [3, 7]),
        (
            "Ernie4_5_MoeForCausalLM",
            {"moe_layer_start_index": 2, "moe_layer_end_index": 6, "moe_layer_interval": 2, "moe_k": 2},
            [3, 5],
        ),
        ("Step3p5ForCausalLM", {"moe_layers_enum": "2,3, 7", "moe_top_k": 2, "share_expert_dim": 48}, [2, 3, 7]),
        ("Step3p5ForCausalLM", {"moe_top_k": 2, "share_expert_dim": 48}, [1, 2, 3, 4, 5, 6, 7]),
        ("ExaoneMoEForCausalLM", {"mlp_layer_types": ["dense"] * 5 + ["sparse", "dense", "sparse"]}, [5, 7]),
        ("HYV4ForCausalLM", {}, [1, 2, 3, 4, 5, 6, 7]),
        ("JambaForCausalLM", {"expert_layer_period": 3, "expert_layer_offset": 1}, [1, 4, 7]),
        ("AfmoeForCausalLM", {"num_dense_layers": 6}, [6, 7]),
        ("SarvamMLAForCausalLM", {"first_k_dense_replace": 1, "moe_layer_freq": 3}, [1, 4, 7]),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "ME*E-MEM"}, [1, 3, 6]),
        (
            "NemotronHForCausalLM",
            {"layers_block_type": ["mamba", "moe", "attention", "moe"], "num_hidden_layers": None},
            [1, 3],
        ),
    ],
)
def test_layers(architecture: str, keys: dict[str, Any], expected: list[int]) -> None:
    assert numbers(architecture, **keys) == expected


@pytest.mark.parametrize(
    ("architecture", "keys", "names"),
    [
        ("DeepseekV3ForCausalLM", {"num_nextn_predict_layers": 2}, ["model.layers.8.mlp", "model.layers.9.mlp"]),
        # The layer's number decides for a draft layer too: 8 is even, 9 is not.
        ("DeepseekV3ForCausalLM", {"num_nextn_predict_layers": 2, "moe_layer_freq": 2}, ["model.layers.8.mlp"]),
        ("Qwen3_5MoeForCausalLM", {"mtp_num_hidden_layers": 1}, ["mtp.layers.0.mlp"]),
        (
            "NemotronHForCausalLM",
            {"hybrid_override_pattern": "ME", "mtp_hybrid_override_pattern": "*E", "num_nextn_predict_layers": 2},
            ["mtp.layers.1.mixer", "mtp.layers.3.mixer"],
        ),
        (
            "NemotronHForCausalLM",
            {"hybrid_override_pattern": "ME", "mtp_layers_block_type": ["moe"], "num_nextn_predict_layers": 1},
            ["mtp.layers.0.mixer"],
        ),
        ("Qwen3MoeForCausalLM", {"num_nextn_predict_layers": 1}, []),
    ],
)
def test_draft_layers(architecture: str, keys: dict[str, Any], names: list[str]) -> None:
    if "hybrid_override_pattern" in keys:
        keys = {**keys, "num_hidden_layers": len(keys["hybrid_override_pattern"])}
    layers = read_layers({**SIZES, "architectures": [architecture], **keys})
    assert [layer.name.removesuffix(".experts") for layer in layers if layer.draft] == names


@pytest.mark.parametrize(("factor", "on_output"), [(2.5, True), (1.0, False), (None, False)])
def test_a_factor_of_one_stands_nowhere(factor: float | None, on_output: bool) -> None:
    (layer, *_) = read_layers({**SIZES, "architectures": ["DeepseekV3ForCausalLM"], "routed_scaling_factor": factor})
    assert (layer.routed_scaling_factor, layer.scale_on_output) == (factor or 1.0, on_output)


@pytest.mark.parametrize(
    ("architecture", "factor"),
    # The defaults of vLLM 0.32's sarvam.py and of the config class of minimax_m3.
    [("SarvamMLAForCausalLM", 2.5), ("MiniMaxM3SparseForCausalLM", 2.0), ("SarvamMoEForCausalLM", 1.0)],
)
def test_a_factor_that_the_config_leaves_out(architecture: str, factor: float) -> None:
    (layer, *_) = read_layers({**SIZES, "architectures": [architecture]})
    assert layer.routed_scaling_factor == factor


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"num_experts": "8"}, "num_experts = '8'"),
        ({"num_experts_per_tok": 2.5}, "num_experts_per_tok = 2.5"),
        ({"mlp_only_layers": 3}, "mlp_only_layers = 3"),
        ({"hidden_act": 1}, "hidden_act = 1"),
    ],
)
def test_a_value_of_another_kind_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"config.json: {named}; expected"):
        numbers("Qwen3MoeForCausalLM", **keys)


@pytest.mark.parametrize(
    ("architecture", "keys", "named"),
    [
        ("Qwen3MoeForCausalLM", {"num_hidden_layers": 2**40}, "1099511627776 decoder layers; expected at most 10000"),
        ("Qwen3MoeForCausalLM", {"num_hidden_layers": -1}, "-1 decoder layers"),
        ("Qwen3MoeForCausalLM", {"num_experts": 2**70}, "1180591620717411303424 experts in a layer; expected at most"),
        (
            "Qwen3MoeForCausalLM",
            {"num_experts": -3},
            "-3 experts in a layer, 2 of them per token; expected numbers",
        ),
        ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 0}, "experts in a layer, 0 of them per token"),
        ("DeepseekV3ForCausalLM", {"num_nextn_predict_layers": 2**40}, "1099511627776 draft layers"),
        ("DeepseekV3ForCausalLM", {"moe_layer_freq": 0}, "moe_layer_freq = 0; expected a whole number from 1"),
        ("SarvamMLAForCausalLM", {"moe_layer_freq": 0}, "moe_layer_freq = 0"),
        ("Ernie4_5_MoeForCausalLM", {"moe_layer_interval": 0, "moe_k": 2}, "moe_layer_interval = 0"),
        ("JambaForCausalLM", {"expert_layer_period": 0}, "expert_layer_period = 0"),
        ("DeepseekV3ForCausalLM", {"routed_scaling_factor": float("nan")}, "routed_scaling_factor = nan"),
        ("DeepseekV3ForCausalLM", {"routed_scaling_factor": float("inf")}, "routed scaling factor is inf"),
        ("DeepseekV4ForCausalLM", {"swiglu_limit": -10}, "swiglu_limit = -10.0; expected a clamp above 0"),
        ("DeepseekV3ForCausalLM", {"n_shared_experts": -1}, "mlp.experts are -48 wide"),
        ("Step3p5ForCausalLM", {"moe_top_k": 2, "swiglu_limits": [0, 7, "no"] * 3}, r"swiglu_limits\[2\] = 'no'"),
    ],
)
def test_a_value_that_no_model_can_have_is_named(architecture: str, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        numbers(architecture, **keys)


def test_layer_numbers_that_are_no_numbers() -> None:
    with pytest.raises(ConfigError, match="moe_layers_enum = '1;2'"):
        numbers("Step3p5ForCausalLM", moe_layers_enum="1;2", moe_top_k=2)
