"""Rows of calls: the largest chunk that fits, equal pieces, never from the sizes of graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_megamoe.plan.capacity import largest_chunk, step_calls


def test_b09_rows_beyond_the_limit_are_cut_into_equal_pieces() -> None:
    # 10240 rows with a limit of 4096: three calls of ceil(10240 / 3).
    assert step_calls(10240, 4096) == (3, 3414)


@given(rows=st.integers(0, 20000), chunk=st.integers(1, 5000))
def test_pieces_cover_the_rows_and_none_is_too_large(rows: int, chunk: int) -> None:
    calls, each = step_calls(rows, chunk)
    assert each <= chunk
    assert calls * each >= rows
    # One call fewer would not hold them, except that a step without rows makes one call too.
    assert rows == 0 or (calls - 1) * chunk < rows
    assert calls >= 1 <= each


@given(
    rows=st.integers(1, 20000), limit=st.none() | st.integers(1, 5000), budget=st.integers(0, 10**6),
    base=st.integers(0, 1000), slope=st.integers(1, 100),
)  # fmt: skip
def test_the_chunk_is_the_largest_that_fits(rows: int, limit: int | None, budget: int, base: int, slope: int) -> None:
    found = largest_chunk(rows, limit, lambda n: base + slope * n, budget)
    allowed = [n for n in range(1, min(rows, limit or rows) + 1) if base + slope * n <= budget]
    assert found == max(allowed, default=0)


@pytest.mark.parametrize(
    ("rows", "chunk", "expected"), [(0, 8, (1, 1)), (1, 8, (1, 1)), (8, 8, (1, 8)), (9, 8, (2, 5))]
)
def test_edges(rows: int, chunk: int, expected: tuple[int, int]) -> None:
    assert step_calls(rows, chunk) == expected
