"""Codes and values of E4M3, E5M2 and E2M1 against ml_dtypes: every byte, every bfloat16, every midpoint."""

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vllm_megamoe.numerics.mx import EMAX, MAX_VALUE, Elem, decode, decode_bytes, encode

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
SIZES = {"e4m3": 256, "e5m2": 256, "e2m1": 16}
ELEMS: list[Elem] = ["e4m3", "e5m2", "e2m1"]


def values_of(codes: NDArray[np.uint8], elem: Elem) -> NDArray[np.float32]:
    return codes.view(TYPES[elem]).astype(np.float32)


def codes_of(values: NDArray[np.float32], elem: Elem) -> NDArray[np.uint8]:
    """ml_dtypes rounds half even; the saturation that it lacks is the clip."""
    limit = np.float32(MAX_VALUE[elem])
    return np.clip(values, -limit, limit).astype(TYPES[elem]).view(np.uint8)


@pytest.mark.parametrize("elem", ELEMS)
def test_every_code_has_the_value_that_ml_dtypes_gives_it(elem: Elem) -> None:
    codes = np.arange(SIZES[elem], dtype=np.uint8)
    # As bits: -0 and the place of NaN count too.
    np.testing.assert_array_equal(decode(torch.from_numpy(codes), elem).numpy(), values_of(codes, elem))
    assert np.array_equal(np.signbit(decode(torch.from_numpy(codes), elem).numpy()), np.signbit(values_of(codes, elem)))


@pytest.mark.parametrize("elem", ELEMS)
def test_every_finite_code_survives_the_round_trip(elem: Elem) -> None:
    codes = torch.arange(SIZES[elem], dtype=torch.uint8)
    values = decode(codes, elem)
    finite = torch.isfinite(values)
    assert encode(values, elem)[finite].equal(codes[finite])


@pytest.mark.parametrize("elem", ELEMS)
def test_every_bfloat16_rounds_as_in_ml_dtypes(elem: Elem) -> None:
    values = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    values = values[~np.isnan(values)]
    assert np.array_equal(encode(torch.from_numpy(values), elem).numpy(), codes_of(values, elem))


@pytest.mark.parametrize("elem", ELEMS)
def test_midpoints_and_their_neighbours_round_as_in_ml_dtypes(elem: Elem) -> None:
    finite = np.unique(values_of(np.arange(SIZES[elem], dtype=np.uint8), elem))
    finite = finite[np.isfinite(finite)]
    middle = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    for values in (middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))):
        assert np.array_equal(encode(torch.from_numpy(values), elem).numpy(), codes_of(values, elem))


@pytest.mark.parametrize("elem", ELEMS)
def test_constants_are_those_of_ml_dtypes(elem: Elem) -> None:
    info = ml_dtypes.finfo(TYPES[elem])
    assert float(info.max) == MAX_VALUE[elem]
    assert 2.0 ** EMAX[elem] <= float(info.max) < 2.0 ** (EMAX[elem] + 1)


@pytest.mark.parametrize(("elem", "nan"), [("e4m3", 0x7F), ("e5m2", 0x7F)])
def test_nan_stays_nan_where_the_format_has_one(elem: Elem, nan: int) -> None:
    code = int(encode(torch.tensor([torch.nan]), elem))
    assert code & nan == nan or np.isnan(values_of(np.uint8([code]), elem))[0]
    assert torch.isnan(decode(torch.tensor([code], dtype=torch.uint8), elem)).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_of_either_sign_is_zero_in_e2m1(sign: float) -> None:
    assert int(encode(torch.tensor([torch.nan]) * sign, "e2m1")) == 0


def test_a_byte_of_two_e2m1_codes_decodes_low_nibble_first() -> None:
    stored = torch.arange(256, dtype=torch.uint8).view(16, 16)
    want = np.stack([values_of(stored.numpy() & 15, "e2m1"), values_of(stored.numpy() >> 4, "e2m1")], -1)
    assert np.array_equal(decode_bytes(stored, "e2m1").numpy(), want.reshape(16, 32))


def test_fp8_bytes_decode_as_their_codes() -> None:
    stored = torch.arange(0, 250, dtype=torch.uint8).view(25, 10)
    np.testing.assert_array_equal(decode_bytes(stored, "e5m2").numpy(), values_of(stored.numpy(), "e5m2"))
