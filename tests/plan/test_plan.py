"""The whole plan against figures worked out by hand from the documents."""

import pickle
import re
from dataclasses import replace
from typing import Any

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, make_plan, plan_layer, plan_of, violations_of

QWEN3_30B = MoeFacts("model.layers.0.mlp.experts", 128, 8, 2048, 768, index=0)
DEEPSEEK_V3 = MoeFacts("model.layers.3.mlp.experts", 256, 8, 7168, 2048, index=3)
EP16 = EngineFacts(dtype="bfloat16", tensor_parallel=16, expert_parallel=True, max_num_batched_tokens=4096)
GIB = 1 << 30
MIXTRAL = MoeFacts("m", 8, 2, 4096, 14336)
ON_950: dict[str, Any] = {"profile": "950@9.2", "requant": "allow"}
EP4 = replace(EP16, tensor_parallel=4)


def plan(layer: MoeFacts, engine: EngineFacts = EP16, **options: Any) -> LayerPlan:
    return plan_layer(engine, layer, Options(**options))


def test_qwen3_30b_is_padded_on_a3() -> None:
    found = plan(QWEN3_30B, profile="a3@9.1")
    assert (found.padding.hidden, found.padding.intermediate_hidden) == (2048, 1024)
    assert found.padding.overhead == pytest.approx(1 / 3)
    # 8 experts of a rank, three matrices of 1024 x 2048, two bytes each.
    assert found.weight_bytes == 8 * 3 * 1024 * 2048 * 2
    # 4096 rows over 16 ranks.
    assert (found.capacity.rows, found.capacity.chunk, found.capacity.calls) == (256, 256, 1)
    assert found.capacity.pad == "dp_max"
    assert not plan(QWEN3_30B, profile="none").padding


@pytest.mark.parametrize(
    ("tensor", "data", "split", "tokens"),
    [
        (4, 1, None, "replicated"),
        (4, 1, False, "replicated"),
        (4, 1, True, "own"),
        (4, 2, True, "own"),
        (1, 4, None, "own"),
        (1, 1, None, "own"),
    ],
)
def test_whose_rows_a_rank_brings(tensor: int, data: int, split: bool | None, tokens: str) -> None:
    engine = EngineFacts("bfloat16", tensor, data, expert_parallel=True, sequence_parallel=split)
    assert plan(QWEN3_30B, engine, profile="none").tokens == tokens


def test_float32_experts_of_the_twin_take_four_bytes() -> None:
    found = plan(QWEN3_30B, replace(EP16, dtype="float32"), profile="none")
    assert found.weight_bytes == 8 * 3 * 768 * 2048 * 4


def test_deepseek_v3_needs_the_published_window() -> None:
    # Worked example of A3, ep 16, 256 tokens, bf16: 69,869,568 bytes of one half, 67 MB of HCCL_BUFFSIZE, which HCCL
    # allocates twice.
    found = plan(DEEPSEEK_V3, profile="a3@9.2")
    assert 66 * 2**20 < 69_869_568 <= 67 * 2**20
    assert found.window_bytes == 2 * 67 * 2**20
    assert found.hccl_buffsize_mb == 67
    small = replace(EP16, hccl_buffsize_mb=66)
    with pytest.raises(ConfigError, match=r"HCCL_BUFFSIZE=66; expected at least 67.*Set HCCL_BUFFSIZE=67"):
        plan(DEEPSEEK_V3, small, profile="a3@9.2")
    plan(DEEPSEEK_V3, replace(EP16, hccl_buffsize_mb=67), profile="a3@9.2")


def test_b01_the_chunk_comes_from_the_batch_and_fits_the_budget() -> None:
    # 65536 rows over 16 ranks: 4096 of each, whose workspace of about 14 GiB (failure B07) exceeds 2 GiB.
    engine = replace(EP16, max_num_batched_tokens=65536)
    found = plan(DEEPSEEK_V3, engine, profile="a3@9.1").capacity
    assert found.rows == 4096
    assert found.calls > 1
    assert found.calls * found.chunk >= found.rows > found.calls * (found.chunk - 1)
    assert found.workspace_bytes <= 2 * GIB

    # B07's formula: rows received at most, times the two activations' bf16 rows. A call fewer would not fit.
    def least(chunk: int) -> int:
        return chunk * 16 * 8 * (2 * 7168 + 2 * 7168)

    assert least(-(-4096 // (found.calls - 1))) > 2 * GIB - 200 * 2**20
    generous = plan(DEEPSEEK_V3, engine, profile="a3@9.1", workspace_budget_gib=20.0).capacity
    assert (generous.calls, generous.chunk) == (1, 4096)


def test_the_budget_is_in_gib_and_holds_to_the_byte() -> None:
    engine = replace(EP16, max_num_batched_tokens=65536)
    whole = plan(DEEPSEEK_V3, engine, profile="a3@9.1", workspace_budget_gib=100.0).capacity
    assert whole.calls == 1
    exact = whole.workspace_bytes / GIB
    assert plan(DEEPSEEK_V3, engine, profile="a3@9.1", workspace_budget_gib=exact).capacity == whole
    assert plan(DEEPSEEK_V3, engine, profile="a3@9.1", workspace_budget_gib=exact - 1 / GIB).capacity.calls == 2


@pytest.mark.parametrize("name", ["max_padding_overhead", "workspace_budget_gib"])
def test_the_number_that_a_remedy_names_is_enough(name: str) -> None:
    """768 to 1024 is a third more, and 0.33 would be rejected again."""
    with pytest.raises(ConfigError) as caught:
        plan(QWEN3_30B, profile="a3@9.1", **{name: 0.001})
    (number,) = re.findall(
        r"max_padding_overhead to ([\d.]+) to|Set workspace_budget_gib to ([\d.]+)\.", str(caught.value)
    )
    assert plan(QWEN3_30B, profile="a3@9.1", **{name: float("".join(number))}).capacity.chunk >= 1


def test_fused_shared_experts_take_workspace() -> None:
    layer = replace(DEEPSEEK_V3, shared=SharedFacts(2048, 7168))
    on_950 = {"profile": "950@9.2", "requant": "allow"}
    fused, apart = (plan(layer, **on_950, fuse_shared_experts=how) for how in ("on", "off"))
    assert (fused.shared.mode, apart.shared.mode) == ("fused", "vllm")
    assert fused.capacity.workspace_bytes > apart.capacity.workspace_bytes


def test_b09_the_products_limit_of_tokens_holds() -> None:
    engine = EngineFacts("bfloat16", data_parallel=16, expert_parallel=True, max_num_batched_tokens=10240)
    small = replace(DEEPSEEK_V3, hidden=1024, intermediate_hidden=1024)
    found = plan(small, engine, profile="a3@9.2", workspace_budget_gib=100.0).capacity
    assert (found.rows, found.calls, found.chunk) == (10240, 3, 3414)


def test_b11_capacity_is_per_rank_whatever_the_number_of_replicas() -> None:
    found = {
        dp: plan(DEEPSEEK_V3, replace(EP16, tensor_parallel=4, data_parallel=dp), profile="none").capacity.chunk
        for dp in (1, 2, 4, 8)
    }
    assert set(found.values()) == {1024}


def test_b02_b04_a_receive_capacity_below_the_bound_needs_consent() -> None:
    # 256 rows x 16 ranks x min(8, 16) = 32768.
    with pytest.raises(ConfigError, match=r"max_recv_token_num = 6144; expected 0 or at least 32768 = 256 rows x 16"):
        plan(DEEPSEEK_V3, max_recv_token_num=6144)
    dropping = plan(DEEPSEEK_V3, max_recv_token_num=6144, allow_token_drop=True)
    assert dropping.capacity.drops
    assert dropping.buffer.max_recv_token_num == 6144
    whole = plan(DEEPSEEK_V3, max_recv_token_num=32768)
    assert not whole.capacity.drops
    assert not plan(DEEPSEEK_V3).capacity.drops


@pytest.mark.parametrize("asked", [64, 131071, 262144])
def test_the_remedy_for_a_receive_capacity_is_one(asked: int) -> None:
    # 2048 rows of a step do not fit 2 GiB in one call, so two of 1024 are made: 1024 x 16 x min(8, 8) = 131072.
    engine = EngineFacts("bfloat16", data_parallel=16, expert_parallel=True)
    with pytest.raises(ConfigError, match=rf"max_recv_token_num = {asked};.* Set it to 0 or 131072"):
        plan(QWEN3_30B, engine, profile="a3@9.1", max_recv_token_num=asked)
    fixed = plan(QWEN3_30B, engine, profile="a3@9.1", max_recv_token_num=131072).capacity
    assert (fixed.chunk, fixed.calls, fixed.max_recv_token_num, fixed.drops) == (1024, 2, 131072, False)
    # Whoever accepts lost rows saves the memory, and with it a call.
    lossy = plan(QWEN3_30B, engine, profile="a3@9.1", max_recv_token_num=64, allow_token_drop=True).capacity
    assert (lossy.chunk, lossy.calls, lossy.drops) == (2048, 1, True)
    assert (
        plan(QWEN3_30B, engine, profile="a3@9.1", max_recv_token_num=131072, allow_token_drop=True).capacity.chunk
        == 2048
    )


def test_b10_layers_that_agree_share_one_configuration() -> None:
    layers = [replace(DEEPSEEK_V3, name=f"model.layers.{i}.mlp.experts", index=i) for i in range(3, 61)]
    found = make_plan(EP16, layers, Options(profile="a3@9.2"))
    assert len(found.layers) == 58
    assert len(found.buffers) == 1


def test_b23_b58_another_configuration_on_the_communicator_is_rejected_by_name() -> None:
    other = replace(DEEPSEEK_V3, name="model.layers.7.mlp.experts", index=7, num_experts=128)
    with pytest.raises(ConfigError, match=r"layers\.7.*layer 7 .* with num_experts 128 instead of 256"):
        make_plan(EP16, [DEEPSEEK_V3, other], Options(profile="a3@9.2"))
    # The twin without a profile takes two sizes.
    assert len(make_plan(EP16, [DEEPSEEK_V3, other], Options(profile="none")).buffers) == 2


def test_the_plan_is_a_pure_function() -> None:
    options = Options(profile="a3@9.1")
    one, other = (make_plan(EP16, [QWEN3_30B, replace(QWEN3_30B, index=1)], options) for _ in range(2))
    assert one == other
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(one.layers) == hash(other.layers)


def test_the_scaling_factor_is_folded_only_where_it_would_reach_fused_shared_experts() -> None:
    scaled = replace(
        DEEPSEEK_V3, routed_scaling_factor=2.5, scale_on_output=True, shared=SharedFacts(2048, 7168)
    )  # fmt: skip
    fused = plan(scaled)
    assert (fused.shared.mode, fused.shared.pieces, fused.fold_scaling) == ("fused", 1, 2.5)
    assert plan(scaled, fuse_shared_experts="off").fold_scaling == 1.0
    assert plan(replace(scaled, scale_on_output=False)).fold_scaling == 1.0
    # Fused experts take memory like routed ones.
    assert fused.weight_bytes - plan(scaled, fuse_shared_experts="off").weight_bytes == 3 * 2048 * 7168 * 2


def test_fusing_by_force_where_it_cannot_be_is_an_error() -> None:
    gated = replace(DEEPSEEK_V3, shared=SharedFacts(2048, 7168, gated=True))
    with pytest.raises(ConfigError, match=r"fuse_shared_experts = 'on', but a gate per token"):
        plan(gated, fuse_shared_experts="on")
    assert plan(gated, fuse_shared_experts="auto").shared.mode == "vllm"


def test_rows_are_padded_as_the_product_demands() -> None:
    found = {p: plan(DEEPSEEK_V3, profile=p, requant="allow").capacity.pad for p in ("a2@9.1", "950@9.1", "950@9.2")}
    assert found == {"a2@9.1": "dp_max", "950@9.1": "num_max", "950@9.2": "own"}


def test_b28_weights_go_as_the_product_takes_them() -> None:
    """A2/A3 reject a stack, 950 of 9.1 rejects a list; where both are taken a list keeps experts movable."""
    found = {p: plan(DEEPSEEK_V3, profile=p, requant="allow").stacked for p in ("a3@9.1", "950@9.1", "950@9.2", "none")}
    assert found == {"a3@9.1": False, "950@9.1": True, "950@9.2": False, "none": False}


def test_hidden_is_padded_for_urma() -> None:
    kimi = replace(DEEPSEEK_V3, hidden=3584, intermediate_hidden=3072, activation=ActivationFacts("situ", beta=4.0))
    assert not plan(kimi, **ON_950).padding
    padded = plan(kimi, **ON_950, topology="urma").padding
    assert (padded.hidden, padded.intermediate_hidden) == (4096, 3072)
    assert padded.overhead == pytest.approx(1 / 7)


def test_a_draft_says_everything_and_raises_nothing() -> None:
    found = draft_plan(EP4, [MIXTRAL, replace(MIXTRAL, name="n")], Options(profile="a3@9.2"))
    assert plan_of(found).layers == ()
    assert [v.where for v in violations_of(found)] == ["m and 1 more"]


def test_the_window_of_950_is_what_the_operator_allocates() -> None:
    """Its size function does not know of quantised rows: 501,157,888 bytes with 4096 rows, quantised or not."""
    engine = replace(EP16, max_num_batched_tokens=65536)
    options = {**ON_950, "workspace_budget_gib": 100.0}
    for extra in ({}, {"combine_quant": "e4m3"}):
        assert plan(DEEPSEEK_V3, engine, **options, **extra).window_bytes >= 501_157_888
