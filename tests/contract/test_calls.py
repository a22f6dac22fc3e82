"""What a layer's call dispatches beside the operator, with a mask, from the second layer of a step on."""

from typing import Any

import pytest

COUNTER = "aten::add_.Tensor"
ZEROES = "aten::masked_fill_.Scalar"
"""Rows that vllm-ascend has filled up with become zero: what the device leaves there is undefined."""
IDS = "aten::masked_fill.Scalar"
"""A 950 takes no mask: such rows get ids of -1."""


@pytest.mark.parametrize(("product", "expected"), [("a3@9.2", [ZEROES]), ("950@9.2", [IDS, ZEROES])])
def test_one_operation_and_the_counters(product: str, expected: list[str]) -> None:
    from contract.support.launch import run

    answers: list[dict[str, Any]] = run(product, ["calls"], ranks=2)["calls"]
    for answer in answers:
        for paths in answer.values():
            later = paths["ours"]["later"]
            assert [name for name in later if name != COUNTER] == expected
            assert later.count(COUNTER) <= 2
