"""Windows of A2 and A3: figures computed with the operator's own size function, and the documents' formula."""

import pytest
from hypothesis import given
from profiles.sizes.buffers import A2, A3, legal_a2_a3, make

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile, find_profile
from vllm_megamoe.profiles.sizes.window import ccl_buffer_size, hccl_buffsize_mb, operator_helper, window_memory

MIB = 1 << 20

# (tokens, dispatch_quant_mode, bytes of a half, MB of a half): EP 8, 256 experts, top 8, hidden 7168
A2_EXAMPLES = [
    (256, 0, 274_833_920, 263),
    (256, 2, 261_267_968, 250),
    (4096, 0, 4_238_451_200, 4043),
    (4096, 2, 4_021_395_968, 3836),
]
# The same with EP 16.
A3_EXAMPLES = [
    (256, 0, 69_869_568, 67),
    (256, 2, 56_246_272, 54),
    (4096, 0, 950_673_408, 907),
    (4096, 2, 732_700_672, 699),
]


@pytest.mark.parametrize("profile", A2, ids=str)
@pytest.mark.parametrize(("tokens", "mode", "half", "mb"), A2_EXAMPLES)
def test_a2_examples(profile: Profile, tokens: int, mode: int, half: int, mb: int) -> None:
    buffer = make(8, 256, tokens, 8, 7168, mode)
    assert ccl_buffer_size(profile, buffer) == 2 * half
    assert hccl_buffsize_mb(profile, buffer) == mb
    assert window_memory(profile, buffer) == 2 * mb * MIB


def test_a2_int8_needs_the_documented_whole_window() -> None:
    assert ccl_buffer_size(A2[0], make(8, 256, 256, 8, 7168, 2)) == 522_535_936


@pytest.mark.parametrize("profile", A3, ids=str)
@pytest.mark.parametrize(("tokens", "mode", "half", "mb"), A3_EXAMPLES)
def test_a3_examples(profile: Profile, tokens: int, mode: int, half: int, mb: int) -> None:
    buffer = make(16, 256, tokens, 8, 7168, mode)
    assert ccl_buffer_size(profile, buffer) == 2 * half
    assert hccl_buffsize_mb(profile, buffer) == mb


@pytest.mark.parametrize(("mode", "a2", "a3"), [(0, 47, 35), (2, 41, 30)])
def test_the_documents_example_fits_its_200_mb(mode: int, a2: int, a3: int) -> None:
    """torch_api.txt, example for A2/A3: EP 2, 16 experts, 256 tokens, top 6, hidden 4096, hccl_buffer_size 200."""
    buffer = make(2, 16, 256, 6, 4096, mode)
    assert [hccl_buffsize_mb(p, buffer) for p in (*A2, *A3)] == [a2, a2, a3, a3]


def test_the_parts_of_an_a3_window() -> None:
    parts = 139_264 + 58_720_256 + 524_288 + 10_485_760
    assert ccl_buffer_size(A3[0], make(16, 256, 256, 8, 7168)) == 2 * parts


def test_fewer_rows_than_the_buffer_was_made_for_need_less() -> None:
    """The tiling counts the call's rows, and with them the automatic receive bound of A2."""
    buffer = make(8, 256, 4096, 8, 7168)
    assert ccl_buffer_size(A2[0], buffer, rows=256) == 2 * 274_833_920
    buffer = make(16, 256, 4096, 8, 7168, 2)
    assert ccl_buffer_size(A3[0], buffer, rows=256) == 2 * 56_246_272


def test_what_the_weights_are_decides_over_the_buffers_mode() -> None:
    buffer = make(16, 256, 256, 8, 7168, 0)
    assert ccl_buffer_size(A3[0], buffer, quantised=True) == 2 * 56_246_272


def test_receive_capacity_moves_a2_and_not_a3() -> None:
    free, capped = (make(8, 256, 256, 8, 7168, 2, max_recv_token_num=n) for n in (0, 1000))
    assert ccl_buffer_size(A3[0], free) == ccl_buffer_size(A3[0], capped)
    # winIn + winOut terms of 1000 received rows: 1000 * 14336 out, 256 * 8 * 7680 out, 4000 scales
    table, flags = 8 * 1152 * 4, 8 * 512 + 8 * 128 * 64 + 8 * 64
    window_in, window_out = 1000 * 7680 + 2048 * 14336, 2048 * 7680 + 1000 * 14336
    assert ccl_buffer_size(A2[0], capped) == 2 * (table + max(window_in, window_out) + 4000 + flags + 10 * MIB)


def document(product: str, b: BufferFacts) -> int:
    """Window constraint of torch_api.txt, both halves, written from its text."""
    quant = b.dispatch_quant_mode == 2
    send = b.num_max_tokens_per_rank * b.num_topk
    recv = b.max_recv_token_num
    if recv == 0:
        recv = b.num_max_tokens_per_rank * b.ep_world_size * min(b.num_topk, b.num_experts // b.ep_world_size)
    entries = b.ep_world_size * 128 + 1
    per_expert = b.ep_world_size * (entries + (128 - entries % 128) % 128) * 4
    bytes_of_a = b.hidden + 512 if quant else b.hidden * 2
    if product == "a2":
        win_in = recv * bytes_of_a + send * b.hidden * 2
        win_out = send * bytes_of_a + recv * b.hidden * 2
        tensor = max(win_in, win_out) + (recv * 4 if quant else 0)
        flag = b.ep_world_size * 512 + b.ep_world_size * 128 * 64 + b.ep_world_size * 64
    else:
        tensor = send * bytes_of_a + send * b.hidden * 2 + (send * 4 if quant else 0)
        flag = max(b.ep_world_size * 512, 512 * 1024)
    return 2 * (per_expert + tensor + flag + 10 * 1024 * 1024)


@given(legal_a2_a3())
def test_every_legal_buffer_follows_the_documents_formula(buffer: BufferFacts) -> None:
    for profile in (*A2, *A3):
        whole = document(profile.product, buffer)
        assert ccl_buffer_size(profile, buffer) == whole
        mb = hccl_buffsize_mb(profile, buffer)
        assert mb is not None
        # Just enough: one MB less in either half fails the check.
        assert 2 * mb * MIB >= whole > 2 * (mb - 1) * MIB


# What the operator's own function returned when it was run: MB of a half, the bf16 figure for int8 as well.
@pytest.mark.parametrize("mode", [0, 2])
def test_the_operators_helper_ignores_int8(mode: int) -> None:
    assert operator_helper(A2[1], make(8, 256, 256, 8, 7168, mode)).value == 263
    assert operator_helper(A2[1], make(8, 256, 4096, 8, 7168, mode)).value == 4043
    assert operator_helper(A3[1], make(16, 256, 256, 8, 7168, mode)).value == 67
    assert operator_helper(A3[1], make(16, 256, 4096, 8, 7168, mode)).value == 907
    assert operator_helper(A3[1], make(16, 256, 256, 8, 7168, mode)).unit == "MB of one half"


def test_the_operators_helper_takes_mode_4_for_int8() -> None:
    assert operator_helper(A2[0], make(8, 256, 256, 8, 7168, 4)).value == 250
    assert operator_helper(A3[1], make(16, 256, 256, 8, 7168, 4)).value == 54


def test_the_helper_of_9_1_counts_the_small_flags_of_a3() -> None:
    """512 bytes per rank instead of 512 KiB: 69,353,472 bytes are 66.14 MB, and the helper adds one."""
    assert operator_helper(find_profile("a3@9.1"), make(16, 256, 256, 8, 7168)).value == 67
    # 65.9 MB against 66.4 MB
    buffer = make(16, 256, 254, 8, 7168)
    assert [operator_helper(p, buffer).value for p in A3] == [66, 67]
