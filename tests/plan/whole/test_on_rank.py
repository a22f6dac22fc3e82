"""What a model takes on a rank: published cache sizes, hand-counted shares, and vLLM's own pipeline stages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.model import read_model
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_of
from vllm_megamoe.plan.whole.cache import cache_bits_of, cache_bytes
from vllm_megamoe.plan.whole.model import WholeModel, read_whole
from vllm_megamoe.plan.whole.on_rank import RankWeights, rank_weights, stage_sizes, stored_bits


def read(shared_dir: Path, name: str) -> WholeModel:
    config = json.loads((shared_dir / "model_configs" / f"{name}_config.json").read_text())
    return read_whole(config, read_model(config, {}).layers)


def engine(tensor: int = 1, data: int = 1, stages: int = 1) -> EngineFacts:
    several = tensor * data > 1
    return EngineFacts("bfloat16", tensor, data, stages, expert_parallel=several)


def test_cache_of_a_token_is_the_published_one(shared_dir: Path) -> None:
    """ "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1: 70.272 KB a token, LLaMA-3.1 405B 516.096 KB."""
    for name, kilobytes in (("deepseek-ai--DeepSeek-V3", 70.272), ("meta-llama--Meta-Llama-3.1-405B", 516.096)):
        whole = read(shared_dir, name)
        assert cache_bytes(whole, engine(), 1000, 16) == pytest.approx(1000 * kilobytes * 1000), name


def test_latent_caches_are_on_every_rank_and_heads_are_cut(shared_dir: Path) -> None:
    latent, grouped = read(shared_dir, "deepseek-ai--DeepSeek-V3"), read(shared_dir, "Qwen--Qwen3-235B-A22B")
    assert cache_bytes(latent, engine(16), 4096, 16) == cache_bytes(latent, engine(), 4096, 16)
    whole = cache_bytes(grouped, engine(), 4096, 16)
    assert whole == 94 * 4096 * 2 * 4 * 128 * 2  # layers, tokens, k and v, heads, width, bytes
    assert cache_bytes(grouped, engine(2), 4096, 16) == whole // 2
    # 4 key-value heads: more ranks hold copies.
    assert cache_bytes(grouped, engine(4), 4096, 16) == cache_bytes(grouped, engine(16), 4096, 16) == whole // 4
    assert cache_bytes(grouped, engine(4), 4096, 8) == whole // 8
    assert cache_bytes(latent, engine(16), 4096, 16, context_parallel=16) == cache_bytes(latent, engine(), 256, 16)


def test_windows_states_and_compressed_entries(shared_dir: Path) -> None:
    oss = read(shared_dir, "openai--gpt-oss-20b")
    entry = 2 * 8 * 64 * 2
    assert cache_bytes(oss, engine(), 100_000, 16) == 12 * entry * (100_000 + 128)  # every second layer slides
    hybrid = read(shared_dir, "Qwen--Qwen3.5-397B-A17B")
    state = 45 * (64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2)  # 45 of 60 layers, float32 state
    tokens = 15 * 2 * 2 * 256 * 2
    assert cache_bytes(hybrid, engine(), 1, 16) == state + tokens
    assert cache_bytes(hybrid, engine(), 1000, 16) == state + 1000 * tokens
    flash = read(shared_dir, "deepseek-ai--DeepSeek-V4-Flash")
    kept = 43 * 128 * 512 + 21 * (512 + 128) * 65536 // 4 + 20 * 512 * 65536 // 128
    assert cache_bytes(flash, engine(), 65536, 16) == 2 * kept


def weights(config: dict[str, Any], there: EngineFacts, profile: str = "a3@9.2") -> RankWeights:
    layers = read_model(config, {}).layers
    plan = plan_of(draft_plan(there, layers, Options(profile=profile, requant="allow")))
    return rank_weights(read_whole(config, layers), layers, plan, stored_bits(config, {}, 16.0))


TINY = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 2048,
    "moe_intermediate_size": 1024,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 6,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}


def test_shares_of_a_rank_by_hand() -> None:
    found = weights(TINY, engine(4, 2))
    experts = 6 * (16 // 8) * 3 * 1024 * 1024 * 2
    attention = 6 * (1024 * 1024 * 2 // 4 + 2 * 1024 * 256 // 2 + 2 * 128) * 2  # q and o by 4, k and v by 2 heads
    assert found.routed == experts
    assert found.parts["attention"] == attention
    assert found.parts["embeddings"] == 2 * 4096 * 1024 * 2 // 4
    assert found.parts["router"] == 6 * 16 * 1024 * 2
    assert found.table == 4096 * 1024 * 2 // 4


def test_the_pipelines_fullest_stage_is_counted() -> None:
    """C9: layers are spread over the stages; the first holds the table, the last the head."""
    one, two = weights(TINY, engine(2)), weights(TINY, engine(2, stages=2))
    assert two.routed == one.routed / 2
    assert two.parts["embeddings"] == one.parts["embeddings"] / 2
    assert two.stage == 1  # the last norm makes it the fullest


@pytest.mark.full
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("layers", [8, 61, 78, 94])
def test_stages_are_vllms(layers: int, stages: int) -> None:
    from vllm.distributed.utils import get_pp_indices

    theirs = [get_pp_indices(layers, rank, stages) for rank in range(stages)]
    assert stage_sizes(layers, stages) == tuple(end - start for start, end in theirs)


def test_linear_layers_take_what_their_file_keeps() -> None:
    plain = weights(TINY, engine(2)).parts["attention"]
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    norms = 6 * 2 * 128 * 2
    assert weights({**TINY, "quantization_config": fp8}, engine(2)).parts["attention"] == (plain - norms) / 2 + norms
    left_out = {**fp8, "modules_to_not_convert": [f"model.layers.{i}.self_attn" for i in range(6)]}
    assert weights({**TINY, "quantization_config": left_out}, engine(2)).parts["attention"] == plain


@pytest.mark.parametrize(
    ("config", "side", "asked", "bits"),
    [
        ({}, {}, "auto", 16),
        ({}, {}, "fp8", 8),
        ({}, {}, "int8", 8),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, {}, "auto", 8),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, {}, "bfloat16", 16),
        ({}, {"hf_quant_config.json": {"quantization": {"kv_cache_quant_algo": "FP8"}}}, "auto", 8),
        ({}, {"quant_model_description.json": {"kv_cache_type": "C8"}}, "auto", 8),
    ],
)
def test_bits_of_the_cache(config: dict[str, Any], side: dict[str, Any], asked: str, bits: int) -> None:
    assert cache_bits_of(config, side, asked) == bits


def test_experts_are_counted_where_nothing_else_is_understood() -> None:
    """Sizes around the experts never refuse a plan; layers without a number are counted too."""
    odd = {**TINY, "num_key_value_heads": [2, 2, 2, 1, 1, 1]}
    layers = read_model(odd, {}).layers
    whole = read_whole(odd, layers)
    assert "not counted" in whole.gaps[0]
    assert "num_key_value_heads" in whole.gaps[0]
    assert weights(odd, engine(4, 2)).routed == weights(TINY, engine(4, 2)).routed
    plan = plan_of(draft_plan(engine(4, 2), layers, Options(profile="a3@9.2")))
    nameless = [replace(layer, index=-1) for layer in layers]
    found = rank_weights(read_whole(TINY, nameless), nameless, plan, lambda name: 16.0)
    assert found.routed == weights(TINY, engine(4, 2)).routed
