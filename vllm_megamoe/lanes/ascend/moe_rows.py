"""Rows as the operator needs them: MoE layers of our engine always get what vllm-ascend prepares for MC2.

Those are each rank's own rows, padded to a multiple of tensor parallelism and to the largest data-parallel rank's, with
a mask of the real ones (ops/fused_moe/prepare_finalize.py). Left to itself vllm-ascend takes that preparation for some
products and numbers of tokens only, else it gathers rows (ALLGATHER) or leaves them unequal (ALLTOALL); the first would
double a layer's output in silence.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.lanes import warm_up
from vllm_megamoe.lanes.quant_config import MegaMoeConfig
from vllm_megamoe.layer.rows import Mask

Selector = Callable[..., Any]


def is_ours(vllm_config: Any) -> bool:
    """Whether an engine, or the draft model of one, was asked for with `--quantization megamoe`."""
    return isinstance(vllm_config.quant_config, MegaMoeConfig)


def always_as_mc2() -> None:
    """Let every selector choose MC2 for our engines; others keep their choice. A second call does nothing."""
    from vllm_ascend.ascend_forward_context import _MOE_COMM_SELECTORS

    for policy, select in list(_MOE_COMM_SELECTORS.items()):
        if not isinstance(select, _Mc2ForOurs):
            _MOE_COMM_SELECTORS[policy] = _Mc2ForOurs(select)


class _Mc2ForOurs:
    """A selector: MC2 for our engines, the original's choice for others."""

    def __init__(self, original: Selector) -> None:
        functools.update_wrapper(self, original)
        self.original = original

    def __call__(
        self, num_tokens: int, vllm_config: Any, capacity: int, is_draft_model: bool = False, *others: Any
    ) -> Any:
        from vllm_ascend.ascend_forward_context import MoECommType

        if is_ours(vllm_config) and (not is_draft_model or _has_drafts(vllm_config.quant_config)):
            return MoECommType.MC2
        return self.original(num_tokens, vllm_config, capacity, is_draft_model, *others)


def _has_drafts(config: MegaMoeConfig) -> bool:
    """Whether draft layers are ours too; where they have a quantisation of their own, vllm-ascend runs them."""
    return config.carried is None or any(layer.facts.draft for layer in config.carried.plan.layers)


def lengthen_mask(vllm_config: Any) -> None:
    """Make the mask's buffer as long as padded rows can be.

    It has max_num_batched_tokens entries, and rows are padded to a multiple of tensor parallelism: 513 tokens over two
    ranks would get 257 rows each, and 256 entries of mask on the second (ascend_forward_context.py, set_mc2_mask).
    """
    from vllm_ascend import ascend_forward_context as context

    mask: Tensor | None = context._reserved_mc2_mask
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if mask is not None and len(mask) % ranks:
        context._reserved_mc2_mask = torch.zeros(-(-len(mask) // ranks) * ranks, dtype=mask.dtype, device=mask.device)


def idle_batches_have_no_real_rows() -> None:
    """Let the mask of a batch that only keeps other ranks company say that no row is real. A second call does nothing.

    vllm-ascend calls all rows of its dummy batches real (model_runner_v1.py, _dummy_run). An eager layer of ours knows
    better; a graph that is replayed reads the mask alone, and would route these rows to experts and count them.
    """
    from vllm_ascend import ascend_forward_context as context

    original = context.set_ascend_forward_context
    if isinstance(original, _NoneReal):
        return
    ours, called = _NoneReal(original), original.__name__
    # Runners and drafts have the function under its name in modules of their own.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm_ascend") and vars(module).get(called) is original:
            setattr(module, called, ours)


class _NoneReal:
    """`set_ascend_forward_context`, with no actual tokens in a dummy batch of ours."""

    def __init__(self, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._takes = inspect.signature(original)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if warm_up.in_idle_batch():
            call = self._takes.bind(*given, **named)
            call.apply_defaults()
            config, draft = call.arguments["vllm_config"], call.arguments["is_draft_model"]
            if is_ours(config) and (not draft or _has_drafts(config.quant_config)):
                call.arguments["num_actual_tokens"] = 0
                return self.original(*call.args, **call.kwargs)
        return self.original(*given, **named)


@dataclass(slots=True)
class _Step:
    """What the layers of one step have in common.

    Attributes:
        masks: by place in memory and length, with the tensor itself, so that its place is nobody else's meanwhile.
    """

    masks: dict[tuple[int, int], tuple[Mask, Tensor]] = field(default_factory=dict)


_STEP = "megamoe_step"
"""Attribute of vLLM's forward context, of which a step has one of its own."""


def mask_of(layer_name: str, rows: int, planned: int, real: Tensor | None) -> Mask | None:
    """Look at how a layer's rows were prepared, host values alone, and give their mask in the forms that calls need.

    What holds for a step is looked at, and made, by its first layer. Every layer gets a view of its own on the same
    bytes of mask.

    Args:
        layer_name, rows: of the layer, and rows that it gets.
        planned: most that it may get. More are the layer's own to reject, on all ranks; their mask ends early.
        real: bool [rows], of vllm-ascend.

    Raises:
        OperatorError: they were not prepared as MC2, or the mask does not fit.
    """
    context = get_forward_context()
    step: _Step | None = getattr(context, _STEP, None)
    if step is None:
        _check_kind(layer_name)
        step = _Step()
        setattr(context, _STEP, step)
    if rows <= planned and (real is None or real.shape[0] != rows):
        got = "no mask" if real is None else f"a mask of {real.shape[0]}"
        raise OperatorError(
            f"{layer_name}: {rows} rows with {got}; expected an entry for each row. Report this configuration."
        )
    if real is None:
        return None
    place = real.data_ptr(), real.shape[0]
    held = step.masks.get(place)
    if held is None:
        held = step.masks[place] = Mask.of(real), real
    return held[0]


def _check_kind(layer_name: str) -> None:
    from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType

    kind = _EXTRA_CTX.moe_comm_type
    if kind not in (MoECommType.MC2, MoECommType.FUSED_MC2):
        got = getattr(kind, "name", kind)
        raise OperatorError(
            f"{layer_name}: vllm-ascend prepared the rows as {got}; expected MC2: gathered rows would come out of the "
            "operator several times, unequal ones would stop it. Report this configuration."
        )
