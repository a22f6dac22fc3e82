"""Switches for what no source settles (op kernel arch22): nibble sign, stale slots. Others: test_special_values."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case
from oracle.make import Shape, make_case

from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings


def result(case: Case, numerics: Numerics, changes: dict[str, Any] | None = None) -> np.ndarray:
    """y of a single rank."""
    with settings(numerics=numerics):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
        y, _ = mega_moe(**call_arguments(case, 0, Form()) | (changes or {}), sym_buffer=buffer)
    return y.float().numpy()


def test_nibbles_may_be_offset_binary() -> None:
    case = make_case("a8w4-int", Shape())
    given = call_arguments(case, 0, Form())
    flipped = {
        n: [t.view(torch.uint8).bitwise_xor(0x88).view(torch.int8) for t in given[n]]
        for n in ("l1_weights", "l2_weights")
    }
    plain = result(case, Numerics())
    assert np.array_equal(result(case, Numerics(int4_nibbles="offset_binary"), flipped), plain)
    assert not np.array_equal(result(case, Numerics(), flipped), plain)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int"])
def test_stale_slots_can_be_made_visible(use_case: str) -> None:
    case = make_case(use_case, Shape())
    case = replace(case, ranks=(replace(case.ranks[0], mask=np.int8([1, 0, 1, 1, 0])),))
    hidden, visible = result(case, Numerics()), result(case, Numerics(stale_slots="nan"))
    assert np.isnan(visible[[1, 4]]).all()
    assert np.array_equal(visible[[0, 2, 3]], hidden[[0, 2, 3]])
    assert not hidden[[1, 4]].any()


def test_rows_beyond_the_capacity_are_stale_slots() -> None:
    case = make_case("a8w8-int", Shape(topk=2))
    ids = np.tile(np.int32([0, 1]), (5, 1))
    case = replace(case, ranks=(replace(case.ranks[0], topk_ids=ids),), max_recv_token_num=8)
    visible = result(case, Numerics(stale_slots="nan"))
    assert np.isnan(visible[3:]).all()
    assert np.isfinite(visible[:3]).all()


def test_stale_slots_may_hold_the_rows_of_the_call_before() -> None:
    # the same call again, but for a mask: what lies in the slots of the masked tokens is what the first call left there
    case = make_case("a8w8-int", Shape())
    masked = replace(case, ranks=(replace(case.ranks[0], mask=np.int8([1, 0, 1, 1, 0])),))
    with settings(numerics=Numerics(stale_slots="old")):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
        first, _ = mega_moe(**call_arguments(case, 0, Form()), sym_buffer=buffer)
        again, _ = mega_moe(**call_arguments(masked, 0, Form()), sym_buffer=buffer)
    assert first[1].any()
    assert again.equal(first)
