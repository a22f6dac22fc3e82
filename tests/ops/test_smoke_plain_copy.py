"""Plain copies: same bits with and without, counted, dropped with their weights, made anew after a change."""

import gc
import logging
from typing import Any

import pytest
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.ops.twin.plain_copy import copied_bytes, forget_copies

# float32 bytes of the four experts' weights: [96, 128] and [64, 96] each
EXPECTED = 4 * 4 * (96 * 128 + 64 * 96)


def prepared(use_case: str, stacked: bool = False) -> tuple[Any, dict[str, Any]]:
    forget_copies()
    case = make_case(use_case, Shape())
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
    return buffer, call_arguments(case, 0, Form(stacked=stacked))


def run(buffer: Any, arguments: dict[str, Any], plain_copy: bool) -> Tensor:
    with settings(plain_copy=plain_copy):
        return mega_moe(**arguments, sym_buffer=buffer)[0]


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_same_result_and_counted(use_case: str, stacked: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vllm_megamoe.ops.twin.plain_copy")
    buffer, arguments = prepared(use_case, stacked)
    without = run(buffer, arguments, plain_copy=False)
    assert copied_bytes() == 0
    # grid data: every float32 sum is exact, so one block or many give the same bits
    assert run(buffer, arguments, plain_copy=True).equal(without)
    assert copied_bytes() == EXPECTED
    run(buffer, arguments, plain_copy=True)
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("plain_copy")]
    assert len(lines) == 2
    assert "l1_weights" in lines[0]
    assert f"{EXPECTED / 2**20:.1f} MiB" in lines[1]


def test_a_changed_weight_is_copied_anew() -> None:
    buffer, arguments = prepared("a16w16")
    before = run(buffer, arguments, plain_copy=True)
    arguments["l2_weights"][1].neg_()
    after = run(buffer, arguments, plain_copy=True)
    assert after.equal(run(buffer, arguments, plain_copy=False))
    assert not after.equal(before)


def test_copies_go_with_their_weights() -> None:
    buffer, arguments = prepared("a8w8-int")
    run(buffer, arguments, plain_copy=True)
    assert copied_bytes() == EXPECTED
    arguments.clear()
    gc.collect()
    assert copied_bytes() == 0
