"""Dropped rows and the requests they belong to: the rows of a step in the runner's order, and what is kept and said."""

import logging
from types import SimpleNamespace

import pytest

from vllm_megamoe.lanes import dropped_rows
from vllm_megamoe.lanes.dropped_rows import by_request, dropped_by_request, in_order, tell


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    dropped_rows._dropped.clear()


def test_rows_are_the_requests_in_the_runners_order() -> None:
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["b", "gone", "a"]))
    order = in_order(runner, {"a": 2, "b": 3})
    assert order == [("b", 3), ("a", 2)]
    assert by_request([0, 1, 2, 0, 0, 9], order) == {"b": 3}
    assert by_request([0, 0, 0, 0, 4, 9], order) == {"a": 4}


def test_the_second_runner_keeps_its_batch_with_the_step() -> None:
    state = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["x"]))
    assert in_order(SimpleNamespace(execute_model_state=state), {"x": 1}) == [("x", 1)]


def test_numbers_add_up_and_the_log_names_the_worst(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vllm_megamoe"):
        tell({"a": 1, "b": 5})
        tell({"a": 2})
        tell({})
    assert dropped_by_request() == {"a": 3, "b": 5}
    first, second = [record.getMessage() for record in caplog.records]
    assert "6 (row, expert) pairs in this step, of request b (5), a (1)." in first
    assert "of request a (2). " in second


def test_what_is_kept_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped_rows, "_KEPT", 3)
    for n in range(10):
        tell({f"r{n}": 1})
    assert list(dropped_by_request()) == ["r7", "r8", "r9"]
