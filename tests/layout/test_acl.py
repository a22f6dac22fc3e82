"""Format ids, dtype codes in every spelling, and what the operator sees of packed bytes."""

import pytest
import torch

from vllm_megamoe.acl import AclDtype, AclFormat, block_columns, format_for_packed
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.dtypes import normalise_dtype

SPELLINGS = [
    # ACL's number, torch's dtype, torch's enum, 256 + ACL's number
    (2, torch.int8, 1, 258),
    (35, torch.float8_e5m2, 23, 291),
    (36, torch.float8_e4m3fn, 24, 292),
    (40, torch.float4_e2m1fn_x2, 45, 296),
]


@pytest.mark.parametrize(("acl", "dtype", "enum", "code"), SPELLINGS)
def test_every_spelling_of_a_dtype(acl: int, dtype: torch.dtype, enum: int, code: int) -> None:
    assert [normalise_dtype(value, "weight1_type") for value in (dtype, enum, code)] == [acl] * 3


def test_int4_has_a_code_and_no_torch_dtype() -> None:
    assert normalise_dtype(285, "weight1_type") is AclDtype.INT4


@pytest.mark.parametrize("value", [None, 28])
def test_undefined(value: int | None) -> None:
    assert normalise_dtype(value, "dispatch_quant_out_dtype") is None


@pytest.mark.parametrize("value", [torch.float64, 2, 99, 290])
def test_other_codes_are_rejected_by_the_arguments_name(value: "torch.dtype | int") -> None:
    with pytest.raises(LayoutError, match="weight1_type"):
        normalise_dtype(value, "weight1_type")


def test_format_ids() -> None:
    assert {f.name: int(f) for f in AclFormat} == {
        "ND": 2,
        "FRACTAL_NZ": 29,
        "FRACTAL_NZ_C0_16": 50,
        "FRACTAL_NZ_C0_32": 51,
    }


def test_packed_bytes_in_format_50_reach_the_operator_as_51() -> None:
    # Recorded from the extension's host code: uint8 with type 296 in format 50 -> FLOAT4_E2M1 in format 51.
    assert format_for_packed(AclFormat(50)) == 51
    assert format_for_packed(AclFormat(29)) == 29
    assert format_for_packed(AclFormat(2)) == 2
    with pytest.raises(LayoutError, match="FRACTAL_NZ_C0_16"):
        format_for_packed(AclFormat(51))


def test_plain_storage_has_no_blocks() -> None:
    with pytest.raises(LayoutError, match="ND"):
        block_columns(AclFormat.ND, 1)
