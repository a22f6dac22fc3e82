"""Rows that a full receiver left out, told with the requests that they belong to; where `allow_token_drop` is set.

The layers of a step note which rows of this rank lost an expert (`layer.lost_rows`); only a worker knows the requests
behind the rows. So its `execute_model` is wrapped: before a step the notes are cleared, after it they are taken, a line
goes to the log, and each request's number is kept for `LLM.collective_rpc` (`dropped_by_request`). Each rank tells of
the rows that it has sent; the ranks' numbers add up.
"""

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.layer.lost_rows import LOST

logger = logging.getLogger(__name__)

_KEPT = 10_000
"""Requests whose numbers are kept, the latest ones: a server that runs for months must not grow with them."""
_NAMED = 8
"""Requests that a line of the log names, those with most lost pairs."""
_MARK = "_vllm_megamoe_wrapped"

_dropped: "OrderedDict[str, int]" = OrderedDict()
"""Request -> its (row, expert) pairs that this rank's receivers had no room for, since the start."""


def watch(worker: type) -> None:
    """Tell of dropped rows after each step of a class of workers; a second call does nothing."""
    if not getattr(worker, _MARK, False):
        worker.execute_model = _telling(worker.execute_model)  # type: ignore[attr-defined]
        setattr(worker, _MARK, True)


def dropped_by_request(worker: Any = None) -> dict[str, int]:
    """What this rank's requests have lost: request -> pairs; for `LLM.collective_rpc(dropped_by_request)`."""
    del worker
    return dict(_dropped)


def _telling(execute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **options: Any) -> Any:
        if not len(LOST.pairs):  # no layer of this process may drop rows
            return execute(self, scheduler_output, *args, **options)
        LOST.start_step()
        result = execute(self, scheduler_output, *args, **options)
        scheduled: Mapping[str, int] = scheduler_output.num_scheduled_tokens
        if scheduled:
            tell(by_request(LOST.taken(), in_order(self.model_runner, scheduled)))
        return result

    return execute_model


def in_order(runner: Any, scheduled: Mapping[str, int]) -> list[tuple[str, int]]:
    """(request, rows) in the order in which the runner has put them into the step that it has just run.

    vLLM's first runner keeps its batch on itself, the second one with the step that waits for its sampling.
    """
    batch = getattr(runner, "input_batch", None) or getattr(runner.execute_model_state, "input_batch", None)
    return [(request, scheduled[request]) for request in batch.req_ids if request in scheduled]  # type: ignore[union-attr]


def by_request(pairs: list[int], requests: list[tuple[str, int]]) -> dict[str, int]:
    """What each request has lost; requests that lost nothing are left out.

    Args:
        pairs: lost by each row of a step.
        requests: (request, rows) in the order of the rows.
    """
    found, first = {}, 0
    for request, rows in requests:
        lost = sum(pairs[first : first + rows])
        first += rows
        if lost:
            found[request] = lost
    return found


def tell(lost: Mapping[str, int]) -> None:
    """Keep the numbers of a step, and say them in a line of the log."""
    if not lost:
        return
    for request, pairs in lost.items():
        _dropped[request] = _dropped.pop(request, 0) + pairs
    while len(_dropped) > _KEPT:
        _dropped.popitem(last=False)
    worst = sorted(lost.items(), key=lambda item: -item[1])[:_NAMED]
    more = f" and {len(lost) - len(worst)} more" if len(lost) > len(worst) else ""
    logger.warning(
        "megamoe dropped rows: %d (row, expert) pairs in this step, of request %s%s. Their answers lack these experts. "
        "Raise max_recv_token_num, or set it to 0.",
        sum(lost.values()),
        ", ".join(f"{request} ({pairs})" for request, pairs in worst),
        more,
    )
