"""Whose rows a step brings: requests', vLLM's own before the engine serves, or those of an idle data-parallel rank.

vLLM runs a model on rows of its own to measure memory, to compile and to warm up, and while one data-parallel rank has
requests, the others take part with a row or two of nobody. Such a run has no attention metadata (v1/worker,
`_dummy_run`); which of both it is, says whether the worker has come to the end of `compile_or_warm_up_model`.
"""

import functools
from typing import Any

from vllm.forward_context import get_forward_context
from vllm.utils.import_utils import resolve_obj_by_qualname

from vllm_megamoe.layer.expert_load import StepKind

_MARK = "_vllm_megamoe_watched"
_over = False


def begin(vllm_config: Any) -> None:
    """A layer is being built, so its engine is not warm; from the end of its worker's warm-up on it serves."""
    global _over
    _over = False
    worker = vllm_config.parallel_config.worker_cls
    if isinstance(worker, str):
        worker = resolve_obj_by_qualname(worker)
    if getattr(worker, _MARK, False):
        return
    warm_up = worker.compile_or_warm_up_model

    @functools.wraps(warm_up)
    def until_warm(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _over
        result = warm_up(self, *args, **kwargs)
        _over = True
        return result

    worker.compile_or_warm_up_model = until_warm
    setattr(worker, _MARK, True)


def is_over() -> bool:
    """Whether the engine of this process serves."""
    return _over


def kind_of_step() -> StepKind:
    """That of the step that is running."""
    if not _over:
        return "warm_up"
    return "idle" if get_forward_context().attn_metadata is None else "served"
