"""The six rows against the documents' scenario tables, written out again."""

import pytest

from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

# operator_readme.txt: scenario table of A2/A3, MXFP constraints of 950.
# dispatch mode, its out dtype, weight type, formats, scales, bias, products
TABLE = {
    "a16w16": (0, None, None, (2, 2), False, False, {"a2", "a3"}),
    "a8w8-int": (2, 258, 258, (29, 29), True, False, {"a2", "a3"}),
    "a8w4-int": (2, 258, 285, (29, 29), True, True, {"a2", "a3"}),
    "a8w8-fp": (4, 292, None, (2, 2), True, False, {"950"}),
    "a8w4-fp": (4, 292, 296, (51, 51), True, False, {"950"}),
    "a4w4-fp": (4, 296, 296, (29, 51), True, False, {"950"}),
}


def test_there_are_six() -> None:
    assert {str(use_case) for use_case in UseCase} == set(TABLE) == {str(use_case) for use_case in USE_CASES}


@pytest.mark.parametrize("name", TABLE)
def test_row(name: str) -> None:
    f = USE_CASES[UseCase(name)]
    formats = (f.format1, f.format2)
    row = (
        f.dispatch_quant_mode,
        f.dispatch_quant_out_dtype,
        f.weight_type,
        formats,
        f.has_scales,
        f.has_bias,
        f.products,
    )
    assert row == TABLE[name]
