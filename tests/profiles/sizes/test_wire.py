"""Bytes per token over the wire."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles.sizes.buffers import A2, A3, make, on_950

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile, find_profile
from vllm_megamoe.profiles.sizes.wire import wire_bytes_per_token

TOP8 = {mode: make(16, 256, 128, 8, 7168, mode) for mode in (0, 2, 4)}


@pytest.mark.parametrize(
    ("profile", "use_case", "record"),
    [
        (A2[0], "a8w8-int", 7168 + 512),
        (A2[1], "a8w4-int", 7168 + 512),
        (A3[0], "a8w8-int", 7168 + 32),
        (A3[1], "a8w4-int", 7168 + 512),
        (A3[1], None, 7168 + 32),
        (find_profile("none"), "a8w8-int", 7168 + 4),
    ],
)
def test_int8_records_carry_their_scale(profile: Profile, use_case: str | None, record: int) -> None:
    wire = wire_bytes_per_token(profile, TOP8[2], use_case=use_case)
    assert wire.record == record
    assert wire.dispatch == wire.dispatch_without_weights == 8 * record
    assert wire.combine == 8 * 14_336


@pytest.mark.parametrize("profile", [*A2, *A3, find_profile("none")], ids=str)
def test_bf16_rows_both_ways(profile: Profile) -> None:
    wire = wire_bytes_per_token(profile, TOP8[0])
    assert wire.dispatch == wire.combine == 8 * 2 * 7168


@pytest.mark.parametrize("profile", [*A2, *A3, find_profile("950@9.1")], ids=str)
def test_modes_that_a_product_lacks_have_no_figure(profile: Profile) -> None:
    wire = wire_bytes_per_token(profile, TOP8[4 if profile.is_950 else 2])
    assert (wire.dispatch_with_weights, wire.combine_merged_expected, wire.combine_merged_worst) == (None, None, None)


def test_mx_records() -> None:
    wire = wire_bytes_per_token(on_950(), TOP8[4])
    assert wire.record == 7392  # 7168 codes, 224 scales
    # 8 router weights, 32 bytes, in each of the 8 records
    assert wire.dispatch_with_weights == 8 * 7424
    assert wire.combine == 8 * 14_336
    forwarding = wire_bytes_per_token(on_950(), make(16, 256, 128, 9, 7168, 4, topk_weights_type=1))
    assert forwarding.dispatch == forwarding.dispatch_with_weights == 9 * (7392 + 64)
    assert forwarding.dispatch_without_weights == 9 * 7392


def test_fp4_halves_the_codes() -> None:
    buffer = BufferFacts(
        ep_world_size=16,
        num_experts=256,
        num_max_tokens_per_rank=128,
        num_topk=8,
        hidden=7168,
        dispatch_quant_mode=4,
        dispatch_quant_out_dtype="FLOAT4_E2M1",
    )
    assert wire_bytes_per_token(on_950(), buffer).record == 3584 + 224
    assert wire_bytes_per_token(find_profile("none"), buffer).record == 3584 + 224


def test_rows_come_back_quantised() -> None:
    buffer = make(16, 256, 128, 8, 7168, 4, combine_quant_mode=4)
    wire = wire_bytes_per_token(on_950(), buffer)
    assert wire.row == 7168 + 224
    assert wire.combine == 8 * 7392
    # 1088 codes to 1280, 34 scales, 1314 to 1344
    assert wire_bytes_per_token(on_950(), make(2, 16, 8, 2, 1088, 4, combine_quant_mode=3)).row == 1344


def test_the_twin_adds_what_merging_needs() -> None:
    none = find_profile("none")
    wire = wire_bytes_per_token(none, make(16, 256, 128, 8, 7168, 4, combine_comm_mode=1))
    assert wire.record == 7168 + 224 + 4 + 8
    assert wire_bytes_per_token(none, make(16, 256, 128, 8, 7168, 4, topk_weights_type=1)).record == 7168 + 224 + 4


def test_urma_cannot_merge_but_forwards() -> None:
    wire = wire_bytes_per_token(on_950("urma"), TOP8[4])
    assert wire.combine_merged_expected is None
    assert wire.dispatch_with_weights == 8 * 7424


def test_expected_cards_of_a_small_model_counted_out() -> None:
    """EP 3, 6 experts, top 2: all 15 choices, by hand; 3 of them are two experts of one card."""
    wire = wire_bytes_per_token(on_950(), make(3, 6, 8, 2, 1024, 4))
    assert wire.cards_expected == pytest.approx((3 * 1 + 12 * 2) / 15, rel=1e-12)
    assert wire.combine_merged_expected == pytest.approx(27 / 15 * 2048, rel=1e-12)
    assert wire.combine_merged_worst == 2 * 2048
    assert wire.remote_share == pytest.approx(2 / 3)


@given(st.integers(2, 4), st.integers(1, 4), st.data())
def test_expected_cards_counted_over_all_choices(ranks: int, per_rank: int, data: st.DataObject) -> None:
    experts = ranks * per_rank
    topk = data.draw(st.integers(1, min(4, experts)))
    choices = list(combinations(range(experts), topk))
    mean = sum(len({e // per_rank for e in choice}) for choice in choices) / len(choices)
    wire = wire_bytes_per_token(on_950(), make(ranks, experts, 8, topk, 1024, 4))
    # Both are ratios of integers below 2^53, rounded a handful of times.
    assert wire.cards_expected == pytest.approx(mean, rel=1e-14)
    assert wire.cards_worst == max(len({e // per_rank for e in choice}) for choice in choices)
