"""What only several ranks, or several layers, of a product show: all of them reject, and none waits."""

import re

import pytest
from profiles import scenes
from profiles.scenes import Scene

from vllm_megamoe.testing.ranks import World

SILENT = "The device would not reject: "
OVERFLOWS = [
    ("a2@9.1", "a16w16", "it drops the rows beyond it, and expert_token_nums still counts them"),
    ("a3@9.2", "a8w8-int", "it drops the rows beyond it"),
    ("950@9.2", "a8w8-fp", "its first GEMM waits for rows that never come"),
]


@pytest.mark.parametrize("name", ["a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"])
def test_unequal_token_counts(name: str, two_ranks: World) -> None:
    scene = Scene(name, "a16w16", change="fewer_rows_on_rank_1")
    for where, text in two_ranks.run(scenes.attempt, [(scene,)] * 2):
        assert where == "call"
        assert re.match(
            r"OperatorError: x: rows=4, 3 on ranks 0, 1, \.\.\.; expected the same number on all ranks", text
        )
        assert f"{SILENT}it computes wrong rows of y" in text


@pytest.mark.parametrize(("name", "kind", "silent"), OVERFLOWS)
def test_receive_overflow(name: str, kind: str, silent: str, two_ranks: World) -> None:
    # both ranks send 4 tokens x 2 experts to rank 1: 16 rows
    fits, short = ({"max_recv_token_num": n} for n in (16, 15))
    assert two_ranks.run(scenes.attempt, [(Scene(name, kind, fits, "to_rank_1"),)] * 2) == [("", "")] * 2
    for where, text in two_ranks.run(scenes.attempt, [(Scene(name, kind, short, "to_rank_1"),)] * 2):
        assert where == "call"
        assert "max_recv_token_num=15; expected at least 16, the rows that rank 1 receives in this call" in text
        assert f"{SILENT}{silent}" in text


def test_calls_go_on_after_a_rejection_of_all_ranks(two_ranks: World) -> None:
    for errors, was_right in two_ranks.run(scenes.recovered, [()] * 2):
        assert len(errors) == 2
        assert all("expected the same number on all ranks" in error for error in errors)
        assert was_right


@pytest.mark.parametrize("destroy", [False, True], ids=["kept", "destroyed"])
@pytest.mark.parametrize("name", ["950@9.1", "950@9.2"])
def test_a_second_buffer_on_a_950_communicator(name: str, destroy: bool, two_ranks: World) -> None:
    kinds = ["a8w8-fp", "a8w8-fp"]
    for first, second in two_ranks.run(scenes.one_after_another, [(name, kinds, destroy)] * 2):
        assert first == ""
        assert "group=a communicator that 1 buffer(s) have been made on, destroyed ones included" in second
        assert f"{SILENT}the new buffer has no memory and no peer addresses" in second


@pytest.mark.parametrize("name", ["a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"])
def test_layers_of_a_communicator_dispatch_alike(name: str, two_ranks: World) -> None:
    kinds = ["a16w16", "a8w8-int", "a16w16"]
    for found in two_ranks.run(scenes.one_after_another, [(name, kinds, False)] * 2):
        assert (found[0], found[2]) == ("", "")
        assert "dispatch_quant_mode=2; expected 0, as the first buffer of the communicator has it" in found[1]
        assert SILENT in found[1]
    for found in two_ranks.run(scenes.one_after_another, [(name, kinds, True)] * 2):
        assert found == ["", "", ""]


def test_a_buffer_keeps_its_dispatch(two_ranks: World) -> None:
    for first, second in two_ranks.run(scenes.changed_between_calls, [("a3@9.1",)] * 2):
        assert first == ""
        assert "dispatch_quant_mode=2; expected 0, as the first buffer" in second
    assert two_ranks.run(scenes.changed_between_calls, [("none",)] * 2) == [["", ""]] * 2


def test_creation_while_a_graph_is_captured(two_ranks: World) -> None:
    for text in two_ranks.run(scenes.created_while_capturing, [("a2@9.2",)] * 2):
        assert SILENT in text
        assert "a call while a graph is captured; expected no graph capture" in text


def test_a_call_is_judged_by_its_own_profile(two_ranks: World) -> None:
    # the layer needs 11 MB in each direction: 10 MiB, 512 KiB of flags, and tables and rows below 100 KiB
    assert two_ranks.run(scenes.judged_later, [("a3@9.2", "11")] * 2) == ["", ""]
    for text in two_ranks.run(scenes.judged_later, [("a3@9.2", "10")] * 2):
        assert re.match(r"ccl_buffer_size=20971520; expected at least \d+ bytes .*Set HCCL_BUFFSIZE=11 ", text)


def test_ranks_have_one_profile(two_ranks: World) -> None:
    first, second = two_ranks.run(scenes.other_profiles, [(["a2@9.1", "a3@9.1"],)] * 2)
    assert "profile is a2@9.1 here and a3@9.1 on rank 1" in first
    assert "profile is a3@9.1 here and a2@9.1 on rank 0" in second
