"""Rows that fill a call: zeros that no expert sees."""

import torch

from vllm_megamoe.layer.rows import pad_rows

X = torch.arange(15, dtype=torch.bfloat16).view(3, 5) + 1
IDS = torch.tensor([[7, 2], [0, 5], [3, 1]], dtype=torch.int32)
WEIGHTS = torch.tensor([[0.5, 0.25], [0.75, 1.0], [0.125, 2.0]])


def test_a_full_call_gets_the_callers_own_tensors_and_no_mask() -> None:
    given = pad_rows(X, IDS, WEIGHTS, 3, masked=True)
    assert (given.x is X, given.topk_ids is IDS, given.topk_weights is WEIGHTS) == (True, True, True)
    assert given.mask is None


def test_without_a_mask_padding_has_the_id_minus_one_and_weight_zero() -> None:
    """B18: 950 has no mask; rows with real ids would be sent and computed."""
    given = pad_rows(X, IDS, WEIGHTS, 5, masked=False)
    assert given.mask is None
    assert given.x[:3].equal(X)
    assert given.topk_ids.tolist() == [*IDS.tolist(), [-1, -1], [-1, -1]]
    assert given.topk_weights.tolist() == [*WEIGHTS.tolist(), [0, 0], [0, 0]]
    assert not given.x[3:].any()


def test_b19_the_mask_is_int8_one_dimensional_and_contiguous() -> None:
    given = pad_rows(X, IDS, WEIGHTS, 5, masked=True)
    assert given.mask is not None
    assert (given.mask.dtype, given.mask.tolist(), given.mask.is_contiguous()) == (torch.int8, [1, 1, 1, 0, 0], True)


def test_b20_with_a_mask_the_ids_are_a_copy() -> None:
    """The operator writes into the ids of masked rows."""
    given = pad_rows(X, IDS, WEIGHTS, 5, masked=True)
    given.topk_ids.fill_(8)
    assert IDS.tolist() == [[7, 2], [0, 5], [3, 1]]


def test_b21_masked_rows_have_distinct_ids_in_range() -> None:
    given = pad_rows(X, IDS, WEIGHTS, 5, masked=True)
    assert given.topk_ids[3:].tolist() == [[0, 1], [0, 1]]
    assert given.topk_ids.dtype == torch.int32


def test_a_rank_without_rows_brings_a_dummy() -> None:
    given = pad_rows(X[:0], IDS[:0], WEIGHTS[:0], 1, masked=False)
    assert (given.x.shape, given.topk_ids.tolist(), given.topk_weights.tolist()) == ((1, 5), [[-1, -1]], [[0, 0]])
