"""Failures B01 to B14 of docs/failures.md, as far as sizes cause them: what happened elsewhere must not happen here.

Expected figures are those of the reports; DeepSeek-V3's sizes (H 7168, I 2048, top 8, 256 experts, EP 16) where a
report names none.
"""

from dataclasses import replace
from typing import Any

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.capacity import step_calls
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, make_plan, plan_layer, plan_of
from vllm_megamoe.profiles.facts import BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call
from vllm_megamoe.profiles.sizes.memory import workspace_bytes
from vllm_megamoe.profiles.sizes.window import ccl_buffer_size, hccl_buffsize_mb

LAYER = MoeFacts("model.layers.3.mlp.experts", 256, 8, 7168, 2048, index=3)
EP16 = EngineFacts("bfloat16", data_parallel=16, expert_parallel=True, max_num_batched_tokens=256)
A3, A3_LATER = find_profile("a3@9.1"), find_profile("a3@9.2")
GIB, MIB = 1 << 30, 1 << 20


def plan(layer: MoeFacts = LAYER, engine: EngineFacts = EP16, **options: Any) -> LayerPlan:
    return plan_layer(engine, layer, Options(**options))


def int8_buffer(tokens: int, received: int = 0) -> BufferFacts:
    return BufferFacts(
        ep_world_size=16,
        num_experts=256,
        num_max_tokens_per_rank=tokens,
        num_topk=8,
        hidden=7168,
        max_recv_token_num=received,
        dispatch_quant_mode=2,
        dispatch_quant_out_dtype="INT8",
    )


def int_weights(element: str, count: int = 16) -> WeightFacts:
    carrier = "INT8"
    return WeightFacts(
        element1=element,
        element2=element,
        carrier=carrier,
        format1="FRACTAL_NZ",
        format2="FRACTAL_NZ",
        count=count,
        intermediate_hidden=2048,
        has_scales=True,
        has_bias=element == "INT4",
    )


def test_b01_a_prefill_fits_although_decode_graphs_are_small() -> None:
    """TP 4, DP 4: a prefill of 477 rows brings 120 to each rank; capture sizes gave room for 32."""
    engine = EngineFacts("bfloat16", 4, 4, expert_parallel=True, sequence_parallel=True, max_num_batched_tokens=477)
    capacity = plan(engine=engine, profile="a3@9.2").capacity
    assert capacity.rows == 120
    assert capacity.calls * capacity.chunk >= 120


def test_b02_less_room_than_a_balanced_load_needs_is_rejected_with_the_arithmetic() -> None:
    """Kimi-K3: EP 16, top 16, 8192 rows in all; 8192 arrive at each rank when balanced, 6144 was the room."""
    kimi = MoeFacts("k", 896, 16, 3584, 3072)
    engine = replace(EP16, max_num_batched_tokens=512)
    with pytest.raises(ConfigError, match=r"max_recv_token_num = 6144.*131072 = 512 rows x 16 ranks x min\(16, 56\)"):
        plan(kimi, engine, profile="a3@9.2", max_recv_token_num=6144, workspace_budget_gib=100.0)
    assert 512 * 16 * 16 // 16 == 8192 > 6144
    with pytest.raises(ValueError, match="max_recv_token_num"):
        Options(max_recv_token_num=-1)


@pytest.mark.parametrize("profile", ["a2@9.1", "a3@9.2", "none"])
def test_b03_nothing_is_dropped_by_default(profile: str) -> None:
    """No constant caps the load: 131072 rows of room were built in, and the rest vanished."""
    engine = EngineFacts("bfloat16", data_parallel=4, expert_parallel=True, max_num_batched_tokens=131072)
    found = plan(replace(LAYER, num_experts=32), engine, profile=profile)
    assert found.buffer.max_recv_token_num == 0
    assert not found.capacity.drops


def test_b04_dropping_rows_needs_its_own_word() -> None:
    with pytest.raises(ConfigError, match="accept lost rows with allow_token_drop"):
        plan(profile="a3@9.2", max_recv_token_num=32767)
    assert plan(profile="a3@9.2", max_recv_token_num=32767, allow_token_drop=True).capacity.drops
    assert not plan(profile="a3@9.2", max_recv_token_num=32768).capacity.drops


def test_b05_w4a8_of_9_1_gets_twice_the_room_and_pays_for_it() -> None:
    """EP 16, 256 rows: 32768 can come; the combine on A3 counts each of them twice."""
    options = Options(profile="a3@9.1", use_case="a8w4-int", workspace_budget_gib=100.0)
    found = plan_of(draft_plan(EP16, [LAYER], options)).layers[0]
    assert found.buffer.max_recv_token_num == 65_536
    # 65536 rows of 43,016 bytes, and little beside them
    assert 0 <= found.capacity.workspace_bytes - 16 * MIB - 65_536 * 43_016 < MIB
    later = plan_of(draft_plan(EP16, [LAYER], options.model_copy(update={"profile": "a3@9.2"}))).layers[0]
    assert later.buffer.max_recv_token_num == 0


@pytest.mark.parametrize(("room", "rejected"), [(0, True), (32_768, True), (65_535, True), (65_536, False)])
def test_b05_less_is_rejected_because_later_experts_would_be_zero(room: int, rejected: bool) -> None:
    call = CallFacts(rows=256, routed=int_weights("INT4"))
    broken = [b for b in broken_by_call(A3, int8_buffer(256, room), call) if b.argument == "max_recv_token_num"]
    assert bool(broken) == rejected
    assert all("later experts come back as zeros" in b.silent for b in broken)
    assert not broken_by_call(A3_LATER, int8_buffer(256, room), call)


def test_b06_room_is_counted_in_tokens_whatever_the_bits() -> None:
    capacity = [
        plan_of(draft_plan(EP16, [LAYER], Options(profile="a3@9.2", use_case=case))).layers[0].capacity
        for case in ("a8w8-int", "a8w4-int")
    ]
    assert capacity[0].receive_bound == capacity[1].receive_bound == 32_768


@pytest.mark.parametrize(
    ("tokens", "room", "use_case", "gib"),
    [
        (4096, 0, "a8w8-int", 14.0),
        (4096, 0, "a8w4-int", 21.0),
        (512, 0, "a8w8-int", 1.75),
        (4096, 131_072, "a8w8-int", 3.5),
    ],
)
def test_b07_a_large_room_costs_what_the_report_says(tokens: int, room: int, use_case: str, gib: float) -> None:
    """EP 16, top 8; the report rounds, and counts received rows only: what does not grow with them is apart."""
    buffer = int8_buffer(tokens, room)
    size = workspace_bytes(A3, buffer, intermediate_hidden=2048, use_case=use_case)
    received = room or tokens * 128
    fixed = 16 * MIB + tokens * 8 * 4 + 16 * 16 * 16 * 4 + 16 * 31 * 4 + 16 * 64
    assert size == received * (28_680 if use_case == "a8w8-int" else 43_016) + fixed
    assert (size - fixed) / GIB == pytest.approx(gib, abs=0.02)


def test_b07_the_plan_cuts_calls_instead() -> None:
    """The default budget of 2 GiB keeps rows x H x 2 below 2^31, where 32-bit offsets of old packages wrap."""
    found = plan(engine=replace(EP16, max_num_batched_tokens=4096), profile="a3@9.1").capacity
    assert found.calls > 1
    assert found.receive_bound * 7168 * 2 < 2**31


@pytest.mark.parametrize(("tokens", "mib"), [(32, 32), (512, 193), (4096, 1398)])
def test_b08_the_window_is_what_the_report_says(tokens: int, mib: int) -> None:
    """EP 16, top 8, H 7168, int8 on A3, both halves; the report gives whole MiB."""
    assert round(ccl_buffer_size(A3, int8_buffer(tokens)) / MIB) == mib


def test_b08_too_small_a_window_is_rejected_with_the_number_to_set() -> None:
    call, buffer = CallFacts(rows=512, routed=int_weights("INT8")), int8_buffer(512)
    assert hccl_buffsize_mb(A3, buffer) == 97
    for mb, rejected in ((96, True), (97, False)):
        broken = broken_by_call(A3, buffer, replace(call, ccl_buffer_size=2 * mb * MIB))
        assert [b.argument for b in broken] == ["ccl_buffer_size"] * rejected
        assert all("HCCL_BUFFSIZE=97" in b.remedy for b in broken)


def test_b08_the_plan_says_it_before_a_weight_is_read() -> None:
    engine = replace(EP16, max_num_batched_tokens=512, hccl_buffsize_mb=100)
    with pytest.raises(ConfigError, match=r"HCCL_BUFFSIZE=100; expected at least 123.*Set HCCL_BUFFSIZE=123"):
        # bf16 rows: 139,264 + 512 * 8 * 28,672 + 524,288 + 10,485,760 bytes are 122.7 MiB
        plan(engine=engine, profile="a3@9.1", workspace_budget_gib=3.0)


def test_b09_more_rows_than_the_limit_make_equal_pieces_on_every_rank() -> None:
    """The scheduler's 10240 against the operator's 4096."""
    engine = replace(EP16, max_num_batched_tokens=10_240)
    found = plan(engine=engine, profile="a3@9.1", workspace_budget_gib=100.0).capacity
    assert (found.calls, found.chunk) == (3, 3414)
    # Ranks with fewer rows count by the largest of them: the number of calls is the same.
    assert step_calls(10_240, found.chunk)[0] == 3
    beyond = [b for b in broken_by_buffer(A3, int8_buffer(10_240)) if b.argument == "num_max_tokens_per_rank"]
    assert len(beyond) == 1
    assert not broken_by_buffer(A3, int8_buffer(3414))


def test_b10_a_buffer_has_room_for_a_row() -> None:
    rejected = {b.argument for b in broken_by_buffer(A3, int8_buffer(0))}
    assert "num_max_tokens_per_rank" in rejected


@pytest.mark.parametrize("profile", ["none", "a3@9.2", "950@9.2"])
def test_b11_capacity_is_per_rank_whatever_the_data_parallel_size(profile: str) -> None:
    """EP 16 throughout; multiplied by DP the rows were 65664 instead of 8448, and 95 GiB instead of 3."""
    found = {
        dp: plan(
            engine=EngineFacts(
                "bfloat16",
                16 // dp,
                dp,
                expert_parallel=True,
                sequence_parallel=True,
                max_num_batched_tokens=8448 // dp,
            ),
            profile=profile,
            requant="allow",
            workspace_budget_gib=1000.0,
        )
        for dp in (1, 2, 4, 8)
    }
    # Each rank brings 528 rows in every layout: 8448 over DP, then over the rest by TP.
    assert {layer.capacity.chunk for layer in found.values()} == {528}
    assert (
        len({(layer.window_bytes, layer.capacity.workspace_bytes, layer.weight_bytes) for layer in found.values()}) == 1
    )


def test_b12_the_first_layer_does_not_size_the_others() -> None:
    """An int8 body and a bf16 head: each gets its own configuration, where the product can hold two."""
    head = replace(LAYER, name="mtp", hidden=4096, num_experts=64, topk=4)
    for layers in ([LAYER, head], [head, LAYER]):
        found = make_plan(EP16, layers, Options(profile="none"))
        assert {(b.hidden, b.num_experts) for b in found.buffers} == {(7168, 256), (4096, 64)}


def test_b13_layers_share_one_configuration() -> None:
    layers = [replace(LAYER, name=f"model.layers.{i}.mlp.experts", index=i) for i in range(58)]
    found = make_plan(EP16, layers, Options(profile="a3@9.2"))
    assert len(found.layers) == 58
    assert len(found.buffers) == 1


def test_b14_prefill_and_decode_use_one_capacity() -> None:
    """Documents want num_max_tokens_per_rank equal on all ranks and layers; the batch's bound serves both."""
    found = make_plan(replace(EP16, max_num_batched_tokens=512), [LAYER], Options(profile="a3@9.2"))
    assert [b.num_max_tokens_per_rank for b in found.buffers] == [found.layers[0].capacity.chunk]
