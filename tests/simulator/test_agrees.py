"""Where nothing is misread, the simulated device computes what the twin does, bit for bit."""

import numpy as np
import pytest
from simulator.scenes import layer, simulate, twin

from vllm_megamoe.testing.ranks import World

USE_CASES = [
    ("a2@9.1", "a16w16"),
    ("a3@9.1", "a8w8-int"),
    ("a2@9.2", "a8w4-int"),
    ("a3@9.2", "a8w8-int"),
    ("950@9.2", "a8w8-fp"),
    ("950@9.2", "a8w4-fp"),
    ("950@9.2", "a4w4-fp"),
]


def both(name: str, use_case: str, small_950: bool, rank: int) -> tuple[bool, bool, bool]:
    case = layer(use_case, small_950=small_950)
    got, want = simulate(name, case, rank), twin("none", case, rank)
    return got.y.tobytes() == want.y.tobytes(), got.counts == want.counts, bool(np.abs(got.y).max() > 1)


@pytest.mark.parametrize(("name", "use_case"), USE_CASES)
def test_a_legal_call(name: str, use_case: str, two_ranks: World) -> None:
    for answer in two_ranks.run(both, [(name, use_case, False, 0), (name, use_case, False, 1)]):
        assert answer == (True, True, True)


def test_a_legal_call_of_950_in_9_1(two_ranks: World) -> None:
    for answer in two_ranks.run(both, [("950@9.1", "a8w8-fp", True, 0), ("950@9.1", "a8w8-fp", True, 1)]):
        assert answer == (True, True, True)


def rows_differ(rank: int) -> bool:
    case = layer("a8w8-fp", (6, 3))
    got, want = simulate("950@9.2", case, rank), twin("none", case, rank)
    return got.y.tobytes() == want.y.tobytes()


def test_950_takes_another_number_of_rows_on_each_rank(two_ranks: World) -> None:
    # op tiling arch35 since 2026-08-17
    assert two_ranks.run(rows_differ, [(0,), (1,)]) == [True, True]
