"""The readings' number tables against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
from formats.readings import numbers

TABLES = {
    "e4m3": (numbers.E4M3, ml_dtypes.float8_e4m3fn),
    "e5m2": (numbers.E5M2, ml_dtypes.float8_e5m2),
    "e2m1": (numbers.E2M1, ml_dtypes.float4_e2m1fn),
    "e8m0": (numbers.E8M0, ml_dtypes.float8_e8m0fnu),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_code_has_its_value(name: str) -> None:
    table, dtype = TABLES[name]
    expected = np.arange(len(table), dtype=np.uint8).view(dtype).astype(np.float64)
    np.testing.assert_array_equal(table, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(table[number]), np.signbit(expected[number]))


def test_bfloat16_bits() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    bits = bits[(bits & 0x7FFF) <= 0x7F80]  # a signalling NaN does not survive a cast
    np.testing.assert_array_equal(numbers.bf16_values(bits), bits.view(ml_dtypes.bfloat16).astype(np.float64))


def test_powers_of_two_and_others() -> None:
    every = 2.0 ** np.arange(-127.0, 128.0)
    found = numbers.power_of_two_bytes(every)
    assert found is not None
    np.testing.assert_array_equal(found, np.arange(255))
    for wrong in (0.0, -1.0, 1.5, np.nextafter(1.0, 2.0), 2.0**128, 2.0**-128, np.inf, np.nan):
        assert numbers.power_of_two_bytes(np.array([1.0, wrong])) is None
