"""How many rows the busiest rank brings, as vLLM has exchanged it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_megamoe.errors import PeerError

state = pytest.importorskip("vllm_megamoe.lanes.parallel_state", reason="vLLM is not installed")


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what stands in the forward context."""

    def exchange(rows: list[int] | None) -> None:
        found = (
            None if rows is None else SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(rows, dtype=torch.int32))
        )
        monkeypatch.setattr(state, "get_forward_context", lambda: SimpleNamespace(dp_metadata=found))

    return exchange


@pytest.mark.parametrize(("rows", "sp_size", "most"), [([5, 9, 0], 1, 9), ([5, 9, 0], 2, 5), ([8, 1], 4, 2)])
def test_the_largest_number_counts_whatever_this_rank_brings(
    rows: list[int], sp_size: int, most: int, exchanged: Any
) -> None:
    """B11, B16: not this rank's, not the sum; a sequence-parallel model gives each of its ranks the ceiling."""
    exchanged(rows)
    assert {state.largest_rows(sp_size, own) for own in rows} == {most}


def test_b15_without_an_exchange_nobody_guesses(exchanged: Any) -> None:
    exchanged(None)
    with pytest.raises(PeerError, match=r"brings 7 rows and vLLM has not exchanged"):
        state.largest_rows(1, 7)
