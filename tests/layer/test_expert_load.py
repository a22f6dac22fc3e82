"""Counters of a layer, by hand."""

import torch
from layer.layers import capacity

from vllm_megamoe.layer.state import ExpertLoad


def test_a_call_below_the_limit_makes_up_for_no_lost_row() -> None:
    """Calls of 12, 3 and 11 rows with room for 10: two and one are lost, and the seven free places help nobody."""
    load = ExpertLoad.start(3, capacity(max_recv_token_num=10, receive_bound=64), torch.device("cpu"))
    for rows in ([7, 0, 5], [1, 2, 0], [0, 0, 11]):
        load.add(torch.tensor(rows, dtype=torch.int32))
    assert load.counts.tolist() == [8, 2, 16]
    assert load.counts.dtype == torch.int64
    assert load.dropped is not None
    assert int(load.dropped) == 3


def test_where_nothing_can_be_lost_nothing_is_counted() -> None:
    for room in (0, 64, 65):
        load = ExpertLoad.start(3, capacity(max_recv_token_num=room, receive_bound=64), torch.device("cpu"))
        assert load.dropped is None
