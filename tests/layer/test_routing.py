"""Ids on their way from the router to the operator, by hand and drawn."""

import pytest
import torch

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layer.routing import Routes, distinct

CPU = torch.device("cpu")


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_copies_are_taken_in_turn_from_a_place_that_the_rank_gives() -> None:
    """Expert 1 stands in slots 0 and 3: rows 0, 1, 2 of rank 0 take 0, 3, 0, those of rank 1 the others."""
    slots = [1, 0, 2, 1]
    asked = ids([1, 0], [1, 2], [2, 1])
    assert Routes(slots, 3, 8, 0, CPU)(asked).tolist() == [[0, 1], [3, 2], [2, 0]]
    assert Routes(slots, 3, 8, 1, CPU)(asked).tolist() == [[3, 1], [0, 2], [2, 3]]


def test_no_expert_stays_none_and_a_wrong_one_is_named() -> None:
    routes = Routes([1, 0, 2, 1], 3, 8, 0, CPU)
    assert routes(ids([-1, 2])).tolist() == [[-1, 2]]
    assert routes(ids([1, 2])).dtype == torch.int32
    with pytest.raises(OperatorError, match=r"topk_ids from 0 to 3; expected experts from 0 to 2, or -1 for none"):
        routes(ids([0, 3]))


@pytest.mark.parametrize("copies", [(2, 3), (5, 7, 8, 9)])
def test_copies_share_rows_as_evenly_as_turns_allow(copies: tuple[int, ...]) -> None:
    """Up to the least common multiple of 840 turns a copy gets at most one row more than another in a round."""
    slots = [expert for expert, count in enumerate(copies) for _ in range(count)]
    routes = Routes(slots, len(copies), 840, 0, CPU)
    rows = routes(torch.arange(len(copies), dtype=torch.int32).expand(840, -1))
    for expert, count in enumerate(copies):
        taken = torch.bincount(rows[:, expert].long(), minlength=len(slots))
        own = [taken[slot] for slot, of in enumerate(slots) if of == expert]
        assert len(own) == count
        assert max(own) - min(own) <= 1


def test_repeats_add_up_and_give_their_place_to_free_experts() -> None:
    found, weights = distinct(ids([5, 0, 0, 0], [1, 2, 3, 0], [4, 4, 0, 4]), torch.tensor([
        [0.5, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.5, 1.0, 2.0],
    ]), 8)  # fmt: skip
    assert found.tolist() == [[5, 0, 1, 2], [1, 2, 3, 0], [4, 1, 0, 2]]
    assert weights.tolist() == [
        [0.5, 0.0, 0.0, 0.0],
        torch.tensor([0.1, 0.2, 0.3, 0.4]).tolist(),
        [2.75, 0.0, 1.0, 0.0],
    ]


def test_drawn_rows_are_distinct_in_range_and_keep_each_experts_weight() -> None:
    g = torch.Generator().manual_seed(3)
    for experts, topk in ((4, 4), (5, 3), (256, 8)):
        drawn = torch.randint(0, experts, (200, topk), generator=g, dtype=torch.int32)
        given = torch.randint(1, 9, (200, topk), generator=g).float()  # sums are exact
        found, weights = distinct(drawn, given, experts)
        assert int(found.min()) >= 0
        assert int(found.max()) < experts
        assert all(len(set(row)) == topk for row in found.tolist())
        before, after = (
            torch.zeros(200, experts).scatter_add_(1, i.long(), w) for i, w in ((drawn, given), (found, weights))
        )
        assert before.equal(after)


def test_rows_without_an_expert_stay_so() -> None:
    found, weights = distinct(ids([-1, -1, 2]), torch.tensor([[0.5, 0.5, 1.0]]), 8)
    assert found.tolist() == [[-1, -1, 2]]
    assert weights.tolist() == [[0.5, 0.5, 1.0]]
