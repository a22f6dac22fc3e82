"""The memory of a 950 buffer: figures from the operator's own size function, and the layout written out."""

from math import ceil

import pytest
from hypothesis import given
from profiles.sizes.buffers import legal_950, make, on_950

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.sizes.window import (
    ccl_buffer_size,
    hccl_buffsize_mb,
    operator_helper,
    smallest_window,
    window_memory,
)
from vllm_megamoe.profiles.sizes.window_950 import bitmap_window, list_window, urma_window

EP16 = {tokens: make(16, 256, tokens, 8, 7168, 4) for tokens in (128, 4096)}


def test_bitmap_examples() -> None:
    """The formula of 9.1.0 and of 2026-08."""
    assert bitmap_window(EP16[128]) == 15_728_640 == 61_440 + 40_960 + 128 * 7392 + 14_680_064
    assert bitmap_window(EP16[4096]) == 501_157_888
    assert bitmap_window(make(16, 256, 4096, 8, 7168, 4, topk_weights_type=1)) == 501_288_960
    assert bitmap_window(make(16, 256, 4096, 8, 7168, 4, combine_quant_mode=4)) == 273_616_896
    assert bitmap_window(make(2, 8, 256, 6, 4096, 4)) == 13_727_744


def test_list_examples() -> None:
    """The formula of the source later than 2026-08."""
    assert list_window(EP16[128]) == 15_822_848
    assert list_window(EP16[4096]) == 502_267_904


def test_9_1_takes_its_own_formula_and_9_2_the_larger_one() -> None:
    assert ccl_buffer_size(find_profile("950@9.1"), EP16[128]) == 15_728_640
    assert ccl_buffer_size(find_profile("950@9.1"), make(2, 8, 256, 6, 4096, 4)) == 13_727_744
    assert ccl_buffer_size(on_950(), EP16[128]) == 15_822_848
    assert ccl_buffer_size(on_950(), EP16[4096]) == 502_267_904
    # With top 32 the bitmap is larger than the list: 4 bytes per token and pair against 2, over 65536 pairs
    wide = make(64, 1024, 1024, 32, 1024, 4)
    assert bitmap_window(wide) > list_window(wide)
    assert ccl_buffer_size(on_950(), wide) == bitmap_window(wide)


def test_a_window_that_a_package_made_is_judged_by_the_formula_that_asks_for_less() -> None:
    """The package of 2026-08 allocates 15,728,640 bytes and is right with them; over URMA it overruns them."""
    assert smallest_window(on_950(), EP16[128]) == 15_728_640
    assert smallest_window(find_profile("950@9.1"), EP16[128]) == 15_728_640
    assert smallest_window(on_950("urma"), EP16[128]) == urma_window(EP16[128]) > 15_728_640
    wide = make(64, 1024, 1024, 32, 1024, 4)
    assert smallest_window(on_950(), wide) == list_window(wide) < bitmap_window(wide)


def test_neither_rows_nor_receive_capacity_enter() -> None:
    capped = make(16, 256, 128, 8, 7168, 4, max_recv_token_num=1000)
    assert ccl_buffer_size(on_950(), capped, rows=5) == 15_822_848


def test_nothing_is_set_by_hand() -> None:
    assert hccl_buffsize_mb(on_950(), EP16[128]) is None
    assert hccl_buffsize_mb(find_profile("none"), EP16[128]) is None
    assert ccl_buffer_size(find_profile("none"), EP16[128]) == window_memory(find_profile("none"), EP16[128]) == 0


def test_the_operators_helper_gives_bytes_and_ignores_the_quantised_combine() -> None:
    for mode in (0, 4):
        size = operator_helper(on_950(), make(16, 256, 4096, 8, 7168, 4, combine_quant_mode=mode))
        assert (size.value, size.unit) == (501_157_888, "bytes")
    assert operator_helper(on_950(), make(16, 256, 4096, 8, 7168, 4, topk_weights_type=1)).value == 501_288_960
    with pytest.raises(ConfigError, match="'none' has no operator"):
        operator_helper(find_profile("none"), EP16[128])


def test_memory_is_what_gets_allocated() -> None:
    quantised = make(16, 256, 4096, 8, 7168, 4, combine_quant_mode=4)
    assert ccl_buffer_size(on_950(), quantised) < 300_000_000
    assert window_memory(on_950(), quantised) == 501_157_888
    assert window_memory(on_950(), EP16[128]) == 15_822_848


def up(value: int, to: int) -> int:
    return ceil(value / to) * to


def parts(b: BufferFacts) -> tuple[int, int, int, int]:
    """Bitmaps, record, records and landing slots, written from the layout."""
    routes = up(b.num_max_tokens_per_rank * b.num_topk, 64)
    bitmaps = up(b.num_experts * (up(routes // 8, 32) + 32), 512)
    record = up(up(b.hidden, 256) + ceil(b.hidden / 32), 32)
    if b.topk_weights_type:
        record += up(b.num_topk * 4, 32)
    back = 2 * b.hidden
    if b.combine_quant_mode:
        back = up(up(b.hidden, 256) + up(ceil(b.hidden / 32), 2), 32)
    slots = up(b.num_max_tokens_per_rank * b.num_topk * back, 512)
    return bitmaps, record, up(b.num_max_tokens_per_rank * record, 512), slots


@given(legal_950())
def test_every_legal_buffer_follows_the_layout(b: BufferFacts) -> None:
    bitmaps, record, records, slots = parts(b)
    tokens = b.num_max_tokens_per_rank
    with_bitmaps = 61_440 + bitmaps + records + slots
    index = 2 if tokens * b.num_topk <= 32_768 else 4
    with_lists = 122_880 + up(b.num_experts * up(tokens * index, 32), 512) + 8_192 + records + slots
    assert ccl_buffer_size(on_950(), b) == max(with_bitmaps, with_lists)
    servers = ceil(b.ep_world_size / (b.rank_num_per_server or 2))
    relayed = 61_440 + bitmaps + up(tokens * up(record, 512) * servers, 512) + up(tokens * 8 * servers, 512) + slots
    assert urma_window(b) == relayed
    assert ccl_buffer_size(on_950("urma"), b) == max(with_bitmaps, relayed)
