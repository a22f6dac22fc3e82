"""The per-layer call holds nothing back: what a step allocates it gives back, whatever came before.

Counted, not timed: blocks of the C allocator that Python's tensors hold (live tensors by torch, live objects by the
garbage collector) after 100 and after 10,000 steps of changing sizes.
"""

import gc
import sys
from collections import Counter

import pytest
import torch
from layer.layers import plan_of, rows_of, state_of
from oracle.make import Shape, make_case

SIZES = (1, 3, 9, 2, 7)


def living() -> tuple[int, int]:
    """Live tensors and their bytes."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return len(tensors), sum(each.untyped_storage().nbytes() for each in tensors if each.device.type == "cpu")


@pytest.mark.full
def test_ten_thousand_steps_hold_as_much_as_a_hundred() -> None:
    case = make_case("a8w8-int", Shape(tokens=(9,)))
    state = state_of(case, 0, plan_of(case, chunk=4, pad="dp_max"))
    x, ids, weights = rows_of(case, 0)

    def steps(count: int) -> None:
        for n in range(count):
            rows = SIZES[n % len(SIZES)]
            state.run(x[:rows], ids[:rows], weights[:rows])

    steps(100)
    tensors, objects, blocks = living(), Counter(type(each) for each in gc.get_objects()), sys.getallocatedblocks()
    steps(9_900)
    assert living() == tensors
    grown = Counter(type(each) for each in gc.get_objects()) - objects
    assert grown.total() < 1000, grown.most_common(5)  # one a step would be 9,900
    assert sys.getallocatedblocks() - blocks < 1000  # one a step would be 9,900
