"""vllm-ascend's dynamic EPLB and placement files: experts stand elsewhere, rows stay the same, bit for bit."""

from typing import Any

import pytest
import torch
from contract.support.cases import CASES

PRODUCTS = ("a3@9.2", "950@9.2")
EVERY = [
    pytest.param(product, case.name, id=f"{product}-{case.name}")
    for product in PRODUCTS
    for case in CASES[product]
    if not case.shared and not case.options
]


@pytest.fixture(scope="module")
def ranks() -> Any:
    from contract.support.launch import run

    found: dict[str, list[dict[str, Any]]] = {}

    def of(product: str, case: str) -> list[dict[str, Any]]:
        if product not in found:
            found[product] = run(product, ["eplb"], ranks=2)["eplb"]
        return [answer[case] for answer in found[product]]

    return of


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_rows_are_the_same_after_a_move(product: str, case: str, ranks: Any) -> None:
    """Their adaptor takes every tensor of an expert, W4A8-MXFP's too, which it refuses elsewhere."""
    for answer in ranks(product, case):
        assert answer["dynamic"]
        assert answer["log2phy"] == [0, 5, 2, 3, 4, 1, 6, 7]
        assert answer["before"].abs().max() > 0
        assert torch.equal(answer["before"], answer["after"])


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_rows_are_the_same_with_a_placement_file(product: str, case: str, ranks: Any) -> None:
    for answer in ranks(product, case):
        assert torch.equal(answer["before"], answer["placed"])


def test_products_have_formats_that_move() -> None:
    found = {case.weights for product in PRODUCTS for case in CASES[product] if not case.shared and not case.options}
    assert {"BF16", "W8A8_DYNAMIC", "W4A8_DYNAMIC", "W8A8_MXFP8", "W4A8_MXFP"} <= found
