"""The twin computes the same whatever torch's default dtype is; frameworks set it while they load a model."""

from dataclasses import replace

import pytest
import torch
from ops.calls import run_rank
from ops.operands import Form
from oracle.make import Shape, make_case


@pytest.mark.parametrize("combine", [0, 1])
@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a4w4-fp"])
def test_the_default_dtype_has_no_say(use_case: str, combine: int) -> None:
    case = replace(make_case(use_case, Shape(), grid=False), combine_comm_mode=combine, max_recv_token_num=12)
    want = run_rank(case, 0, Form())
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = run_rank(case, 0, Form())
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.y.tobytes() == want.y.tobytes()
