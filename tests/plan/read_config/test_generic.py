"""Architectures that no table knows."""

from typing import Any

import pytest

from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.read_config.reader import architecture_of, is_known, read_layers

NEW = {"architectures": ["BrandNewForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3, "hidden_act": "silu"}


def test_shared_key_names_are_enough() -> None:
    config = {
        **NEW,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 48,
        "n_shared_experts": 2,
        "first_k_dense_replace": 2,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 5.0,
    }
    clamp = ActivationFacts("silu", 5.0)
    assert read_layers(config) == (
        MoeFacts(
            "model.layers.2.mlp.experts",
            num_experts=16,
            topk=4,
            hidden=64,
            intermediate_hidden=48,
            index=2,
            activation=clamp,
            shared=SharedFacts(96, 64, clamp),
            routed_scaling_factor=1.5,
            model_hidden=64,
        ),
    )
    assert not is_known(config)


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ({"decoder_sparse_step": 2}, [1]),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, [0, 2]),
        ({"moe_layer_freq": [0, 0, 1]}, [2]),
        ({"moe_layers_enum": "0,1"}, [0, 1]),
        ({}, [0, 1, 2]),
    ],
)
def test_each_mark_is_understood(keys: dict[str, Any], numbers: list[int]) -> None:
    config = {**NEW, "num_experts": 4, "moe_topk": [2, 2, 2], "moe_intermediate_size": 48, **keys}
    assert [layer.index for layer in read_layers(config)] == numbers


@pytest.mark.parametrize(
    "keys",
    [{}, {"num_experts": 1, "num_experts_per_tok": 1}, {"num_experts": None}, {"num_experts": 8}],
    ids=["no keys", "one expert", "null", "no top-k"],
)
def test_a_model_without_routed_experts_has_no_layers(keys: dict[str, Any]) -> None:
    assert read_layers({**NEW, **keys}) == ()


def test_a_section_inside_a_multimodal_config_is_found() -> None:
    inner = {**NEW, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    config = {"architectures": ["BrandNewVLForConditionalGeneration"], "vision_config": {}, "text_config": inner}
    assert architecture_of(config) == "BrandNewVLForConditionalGeneration"
    assert [layer.name for layer in read_layers(config)] == [
        f"language_model.model.layers.{i}.mlp.experts" for i in range(3)
    ]


def test_the_language_model_inside_may_be_known_where_the_whole_is_not() -> None:
    inner = {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 1,
    }
    config = {"architectures": ["BrandNewVLForConditionalGeneration"], "text_config": inner}
    assert [layer.name for layer in read_layers(config)] == ["language_model.model.layers.0.block_sparse_moe.experts"]
    assert is_known(config)
