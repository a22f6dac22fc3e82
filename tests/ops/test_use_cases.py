"""Every use case in every layout against the oracle: bits on grid data, derived bounds elsewhere, 1 rank."""

import pytest
from ops.compare import check, check_bits
from ops.operands import FORMS, Form
from oracle.make import Shape, make_case

USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]
# K/32 is odd in both products of the second shape; the third ends within a group of 32 and within a block of 16 rows
SHAPES = [
    Shape(),
    Shape(tokens=(7,), experts=3, hidden=160, intermediate=96, topk=2),
    Shape(tokens=(4,), experts=3, hidden=72, intermediate=40, topk=2),
]


def forms_of(use_case: str) -> list[Form]:
    """The layouts that a use case has."""
    if use_case == "a8w4-int":
        return [Form(f.blocks, f.stacked, carrier) for f in FORMS for carrier in ("int8", "int32")]
    return FORMS


CASES = [(use_case, form) for use_case in USE_CASES for form in forms_of(use_case)]


@pytest.mark.parametrize("shape", SHAPES, ids=["96x64", "160x96", "72x40"])
@pytest.mark.parametrize(("use_case", "form"), CASES, ids=[f"{u}-{f}" for u, f in CASES])
def test_bits_on_grid_data(use_case: str, form: Form, shape: Shape) -> None:
    check_bits(make_case(use_case, shape), form)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp"])
def test_odd_sizes(use_case: str) -> None:
    case = make_case(use_case, Shape(tokens=(3,), hidden=70, intermediate=41))
    for form in (Form(), Form(blocks=True)):
        check_bits(case, form)


@pytest.mark.parametrize("use_case", ["a8w8-int", "a8w4-int"])
def test_bits_of_integer_use_cases_on_random_data(use_case: str) -> None:
    check_bits(make_case(use_case, Shape(tokens=(11,)), grid=False), Form(blocks=True))


@pytest.mark.parametrize("elem", ["e4m3", "e5m2"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_both_fp8_formats(elem: str, form: Form) -> None:
    check_bits(make_case("a8w8-fp", Shape(), act_elem=elem), form)
    check(make_case("a8w8-fp", Shape(), act_elem=elem, grid=False), form)


@pytest.mark.parametrize("use_case", USE_CASES)
@pytest.mark.parametrize("seed", range(3))
def test_random_data_stays_in_its_bounds(use_case: str, seed: int) -> None:
    check(make_case(use_case, Shape(tokens=(9,)), grid=False, seed=seed))
