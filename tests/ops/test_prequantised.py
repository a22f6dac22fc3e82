"""x that comes quantised, with its scales (dispatch_quant_mode 0; operator_readme.txt)."""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check, check_bits, run
from ops.operands import Form
from oracle import formats
from oracle.case import Case, Rank
from oracle.make import Shape, make_case

from vllm_megamoe.testing.ranks import World

KINDS = [("a8w8-fp", "e4m3"), ("a8w8-fp", "e5m2"), ("a8w4-fp", "e4m3"), ("a4w4-fp", "e2m1")]


@pytest.mark.parametrize(("use_case", "elem"), KINDS)
@pytest.mark.parametrize("hidden", [96, 128])
def test_own_codes_give_what_dispatch_gives(use_case: str, elem: str, hidden: int, two_ranks: World) -> None:
    case = make_case(use_case, Shape(tokens=(5, 3), hidden=hidden), act_elem=elem, shared=1)
    got = check_bits(replace(case, prequantised=True), Form(blocks=True), two_ranks)
    dispatched = run(case, Form(blocks=True), two_ranks)
    assert [g.y.tobytes() for g in got] == [d.y.tobytes() for d in dispatched]


def _foreign(case: Case, elem: str) -> Case:
    """Codes and scales that the operator's own quantiser would never choose: each group's numbers anywhere in range."""
    rng = np.random.default_rng(21)

    def rank(old: Rank) -> Rank:
        codes = formats.encode(
            formats.to_element(np.float32(old.x * rng.choice([0.5, 1, 2], (len(old.x), 1))), elem), elem
        )
        scales = rng.integers(122, 125, (len(old.x), -(-old.x.shape[1] // 32))).astype(np.uint8)
        meant = formats.decode(codes, elem) * formats.e8m0(scales).repeat(32, axis=1)[:, : old.x.shape[1]]
        return replace(old, x=np.float32(meant), codes=(codes, scales))

    return replace(case, ranks=tuple(rank(r) for r in case.ranks), prequantised=True)


@pytest.mark.parametrize("forward", [0, 1])
@pytest.mark.parametrize(("use_case", "elem"), KINDS)
def test_foreign_codes_are_taken_as_they_are(use_case: str, elem: str, forward: int) -> None:
    case = _foreign(make_case(use_case, Shape(), act_elem=elem, grid=False), elem)
    check(replace(case, topk_weights_type=forward))
