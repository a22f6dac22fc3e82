"""The workspace of a call: areas in the order in which the operator's tiling adds them up."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles.sizes.buffers import A2, A3, legal_950, legal_a2_a3, make, on_950

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.sizes.common import received_rows
from vllm_megamoe.profiles.sizes.memory import workspace_bytes

MIB = 1 << 20
INT_CASES = ["a16w16", "a8w8-int", "a8w4-int"]
MX_CASES = ["a8w8-fp", "a8w4-fp", "a4w4-fp"]


def up(value: int, to: int) -> int:
    return ceil(value / to) * to


def test_a3_example() -> None:
    """int8, EP 16, 256 tokens, top 8, hidden 7168, I 2048: 32768 rows of 28,680 bytes, about 0.94 GB."""
    buffer = make(16, 256, 256, 8, 7168, 2)
    rows = 939_786_240
    # row indices, counts of ranks and experts, prefix sums, flags
    small = 256 * 8 * 4 + 16 * 16 * 16 * 4 + 16 * 31 // 16 * 16 * 4 + 16 * 64
    for profile in A3:
        got = workspace_bytes(profile, buffer, intermediate_hidden=2048, use_case="a8w8-int")
        assert got == 16 * MIB + rows + small
    # "with 4096 tokens about 15 GB"
    big = make(16, 256, 4096, 8, 7168, 2)
    assert 15.0e9 < workspace_bytes(A3[0], big, intermediate_hidden=2048, use_case="a8w8-int") < 15.1e9


def test_a_small_call_is_ruled_by_the_routing_step() -> None:
    """One token: 16 MiB for sorting, 32 bytes a route, 50 cores with two counters and a float32 row each."""
    buffer = make(2, 16, 1, 6, 1024, 2)
    sorting = 6 * 32 + 50 * 8 + 16 * MIB
    assert workspace_bytes(A3[0], buffer, intermediate_hidden=512, use_case="a16w16") == 16 * MIB + sorting
    with_rows = sorting + 50 * 1024 * 4
    assert workspace_bytes(A2[0], buffer, intermediate_hidden=512, use_case="a8w8-int") == 16 * MIB + with_rows


def tiling_a2_a3(product: str, b: BufferFacts, width: int, case: str, rows: int) -> int:
    """The last part of the tiling function of A2/A3."""
    n, ints = 2 * width, case != "a16w16"
    recv = b.max_recv_token_num or rows * b.ep_world_size * min(b.num_topk, b.experts_per_rank)
    total = up(rows, 256) * b.num_topk * 4
    if product == "a3":
        total += b.ep_world_size**2 * b.experts_per_rank * 4
        total += recv * max(n, b.hidden) * 2 + recv * max(b.hidden, width) * 2
        total += (b.ep_world_size * (b.experts_per_rank + 15)) // 16 * 16 * 4
    else:
        total += up(b.num_experts + 1, 128) * (b.ep_world_size + 2) * 4
        total += recv * max(n, b.hidden) * 2 + recv * max(b.hidden, width) * (1 if ints else 2)
    total += b.ep_world_size * 4 * 16
    if ints:
        total += recv * 4 * 2
    if case == "a8w4-int":
        total += recv * max(n, b.hidden) * 2
    routing = rows * b.num_topk * (4 * 2 * 3 + 4 * 2) + 50 * 2 * 4 + 16 * MIB + (50 * b.hidden * 4 if ints else 0)
    return 16 * MIB + max(total, routing)


@given(legal_a2_a3(), st.integers(1, 8), st.sampled_from(INT_CASES), st.integers(1, 4096))
def test_every_legal_call_of_a2_a3(b: BufferFacts, width: int, case: str, tokens: int) -> None:
    rows = min(tokens, b.num_max_tokens_per_rank)
    for profile in (*A2, *A3):
        got = workspace_bytes(profile, b, intermediate_hidden=512 * width, use_case=case, rows=rows)
        assert got == tiling_a2_a3(profile.product, b, 512 * width, case, rows)


def test_9_1_on_950() -> None:
    """EP 16, 256 experts, 128 tokens, top 8, hidden 7168, I 2048: the eight areas of the 9.1.0 header, 36 cores."""
    buffer = make(16, 256, 128, 8, 7168, 4)
    recv = 16_384
    areas = [recv * 7168, recv * 224, recv * 2048, recv * 64, 16 * 32 * 36, recv * 32]
    flags = 4 * 16 * 16 + 4 * 16 * 64
    got = workspace_bytes(find_profile("950@9.1"), buffer, intermediate_hidden=2048, use_case="a8w8-fp")
    assert got == 50 * MIB + sum(areas) + flags
    assert all(area % 512 == 0 for area in areas)


class Sizer:
    """A running offset, as the kernel's header keeps one."""

    def __init__(self) -> None:
        self.at = 0

    def add(self, size: int, to: int = 1) -> None:
        self.at += up(size, to)


def header_2026_08(b: BufferFacts, case: str, rows: int, width: int, shared: int, urma: bool, servers: int) -> int:
    """The workspace header of 2026-08, area by area; 36 cube cores, 72 vector cores."""
    s, cores, n = Sizer(), 36, 2 * width
    experts, ep, k, h = b.experts_per_rank, b.ep_world_size, b.num_topk, b.hidden
    recv = b.max_recv_token_num or b.num_max_tokens_per_rank * ep * min(k, experts)
    forward = b.topk_weights_type == 1
    wave = case == "a8w8-fp" and not urma
    s.add(recv * h, 512)
    s.add(recv * ceil(h / 64) * 2, 512)
    if forward and urma:
        s.add(recv * up(4 * k, 32), 512)
    s.add(recv * n // 2, 512)
    s.add(recv * n // 2 // 32, 512)
    s.add(experts * 32 * cores, 512)
    s.add(recv * 32, 512)
    slots = ceil(recv / 256) * 16
    s.add(4 * experts * (slots if not urma and case in ("a8w8-fp", "a8w4-fp") else 16))
    s.add(4 * experts * slots)
    s.add(4 * 16 * experts * cores)
    if case != "a8w8-fp":
        s.add(cores * 64)
    if wave:
        s.add(4 * experts * cores * 16)
    if urma or (b.combine_quant_mode and not wave):
        senders = 72 // 2 if case != "a8w8-fp" or wave else 72
        s.add(max(ceil(b.num_max_tokens_per_rank * ep / 256), senders) * experts * 16 * 4)
    if shared:
        s.add(4 * ceil(rows / 256) * shared * 16)
    if case == "a8w4-fp":
        s.add(up(4 * experts * ep, 32) * cores)
    if case == "a8w4-fp" or forward:
        s.add(2 * recv * n)
    if case != "a8w8-fp" or b.combine_quant_mode or urma or wave:
        if wave:
            s.at = up(s.at, 512)
        s.add(2 * recv * h, 512 if wave else 1)
    if forward:
        tiles = up(ceil(recv / 256) * ceil(n / 256), 16)
        s.add(4 * (experts * tiles + 1) * 16, 512)
    if urma:
        mask = up(up(rows * k * 4, 256) // 4 // 8, 32) + 32
        s.add(experts * ep * mask, 512)
        s.add(servers * (32 + rows * 32), 512)
        s.add(servers * 4, 512)
        s.add(cores * 4, 512)
        s.add(cores * up(rows * 8, 512))
    if shared:
        s.add(2 * rows * shared * h, 512)
        s.add(2 * rows * shared * n, 512)
        s.add(rows * h, 512)
        s.add(rows * ceil(h / 32) * 2, 512)
        s.add(rows * shared * n // 2, 512)
        s.add(rows * shared * n // 2 // 32, 512)
    return 50 * MIB + s.at


@given(legal_950(), st.integers(2, 32), st.sampled_from(MX_CASES), st.integers(1, 9000), st.integers(0, 4))
def test_every_legal_call_of_950(b: BufferFacts, width: int, case: str, tokens: int, shared: int) -> None:
    rows, i = min(tokens, b.num_max_tokens_per_rank), 128 * width
    servers = ceil(b.ep_world_size / (b.rank_num_per_server or 2))
    for topology in ("mte", "urma"):
        got = workspace_bytes(
            on_950(topology), b, intermediate_hidden=i, use_case=case, rows=rows, shared_experts=shared
        )
        assert got == header_2026_08(b, case, rows, i, shared, topology == "urma", servers)


def test_shared_experts_of_another_width() -> None:
    buffer = make(16, 256, 128, 8, 7168, 4)
    wide, narrow = (
        workspace_bytes(
            on_950(),
            buffer,
            intermediate_hidden=2048,
            use_case="a8w8-fp",
            shared_experts=2,
            shared_intermediate_hidden=width,
        )
        for width in (4096, 2048)
    )
    # 2 x 128 rows: bf16 gate and up, codes and scales of 2048 more channels
    assert wide - narrow == 256 * 2048 * (2 * 2 + 1) + 256 * 64


def test_receive_bounds() -> None:
    buffer = make(16, 256, 4096, 8, 7168, 2)
    assert received_rows(A3[0], buffer) == 524_288
    assert received_rows(A3[0], buffer, 512) == 65_536
    assert received_rows(on_950(), buffer, 512) == 524_288
    assert received_rows(A3[0], make(128, 256, 1, 8, 7168)) == 128 * 2
    assert received_rows(A3[0], make(16, 256, 4096, 8, 7168, max_recv_token_num=99), 512) == 99


def test_other_products_use_cases_are_rejected_by_name() -> None:
    buffer = make(16, 256, 128, 8, 7168, 4)
    with pytest.raises(ConfigError, match=r"a8w8-fp.*a3@9.1.*runs on 950"):
        workspace_bytes(A3[0], buffer, intermediate_hidden=2048, use_case="a8w8-fp")
    with pytest.raises(ConfigError, match="'w8'; expected one of a16w16, a8w8-int"):
        workspace_bytes(A3[0], buffer, intermediate_hidden=2048, use_case="w8")
    assert workspace_bytes(find_profile("none"), buffer, intermediate_hidden=2048, use_case="a16w16") == 0
