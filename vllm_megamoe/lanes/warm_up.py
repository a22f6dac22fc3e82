"""Whose rows a step brings: requests', vLLM's own before the engine serves, or those of an idle data-parallel rank.

vLLM runs a model on rows of its own to measure memory, to compile and to warm up, and while one data-parallel rank has
requests, the others take part with a row or two of nobody (the worker's `execute_dummy_batch`). Both come from its
`_dummy_run`; which of them it is, says whether the worker has come to the end of `compile_or_warm_up_model`.
"""

import functools
import sys
from typing import Any, Literal

from vllm.forward_context import get_forward_context

from vllm_megamoe.layer.expert_load import StepKind

_MARK = "_vllm_megamoe_watched"
_engine: Literal["none", "starts", "serves"] = "none"
_idle_batch = False


def begin(vllm_config: Any) -> None:
    """A layer is being built, so its engine is not warm; from the end of its worker's warm-up on it serves.

    A layer may be built without a worker, by a test or a tool: its module is not loaded then.
    """
    global _engine
    worker = vllm_config.parallel_config.worker_cls
    if isinstance(worker, str):
        module, _, name = worker.rpartition(".")
        worker = getattr(sys.modules.get(module), name, None)
    _engine = "none" if worker is None else "starts"
    if worker is None or getattr(worker, _MARK, False):
        return
    warm_up, dummy_batch = worker.compile_or_warm_up_model, worker.execute_dummy_batch

    @functools.wraps(warm_up)
    def until_warm(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _engine
        result = warm_up(self, *args, **kwargs)
        _engine = "serves"
        return result

    @functools.wraps(dummy_batch)
    def as_idle(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _idle_batch
        _idle_batch = True
        try:
            return dummy_batch(self, *args, **kwargs)
        finally:
            _idle_batch = False

    worker.compile_or_warm_up_model, worker.execute_dummy_batch = until_warm, as_idle
    setattr(worker, _MARK, True)


def in_idle_batch() -> bool:
    """Whether this rank runs a step only to keep the others company."""
    return _idle_batch


def is_over() -> bool:
    """Whether the engine of this process serves."""
    return _engine != "starts"


def kind_of_step() -> StepKind:
    """That of the step that is running."""
    if _engine == "starts":
        return "warm_up"
    if _idle_batch:
        return "idle"
    # Whoever runs a model on no requests without the worker's word gives no attention metadata either.
    return "served" if _engine == "none" or get_forward_context().attn_metadata is not None else "idle"
