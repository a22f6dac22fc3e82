"""Rows as the operator needs them: MoE layers of our engine always get what vllm-ascend prepares for MC2.

Those are each rank's own rows, padded to a multiple of tensor parallelism and to the largest data-parallel rank's, with
a mask of the real ones (ops/fused_moe/prepare_finalize.py). Left to itself vllm-ascend takes that preparation for some
products and numbers of tokens only, else it gathers rows (ALLGATHER) or leaves them unequal (ALLTOALL); the first would
double a layer's output in silence.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context

from vllm_megamoe.errors import OperatorError
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


_MASKS = "megamoe_masks"
"""Attribute of vLLM's forward context: the masks of a step by their place in memory."""


def mask_of(real: Tensor | None) -> Mask | None:
    """vllm-ascend's bool [T] in the forms that calls need, made by a step's first layer and kept for its others.

    Every layer gets a view of its own on the same bytes; a step has a forward context of its own.
    """
    if real is None:
        return None
    context, place = get_forward_context(), (real.data_ptr(), real.shape[0])
    held: dict[tuple[int, int], tuple[Mask, Tensor]] | None = getattr(context, _MASKS, None)
    if held is None:
        held = {}
        setattr(context, _MASKS, held)
    if place not in held:
        # The tensor itself is kept too: with it its place in memory is nobody else's.
        held[place] = Mask.of(real), real
    return held[place][0]


@functools.cache
def _context() -> tuple[Any, frozenset[Any]]:
    """vllm-ascend's extra context, and its kinds of rows as MC2 has them."""
    from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType

    return _EXTRA_CTX, frozenset({MoECommType.MC2, MoECommType.FUSED_MC2})


def check_rows(layer_name: str, rows: int, planned: int, mask: Tensor | None) -> None:
    """Look at how a layer's rows were prepared; host values alone.

    Args:
        rows: that the layer gets.
        planned: most that it may get. More are the layer's own to reject, on all ranks; their mask ends early.
        mask: of real rows.

    Raises:
        OperatorError: they were not prepared as MC2, or the mask does not fit.
    """
    extra, as_mc2 = _context()
    kind = extra.moe_comm_type
    if kind not in as_mc2:
        got = getattr(kind, "name", kind)
        raise OperatorError(
            f"{layer_name}: vllm-ascend prepared the rows as {got}; expected MC2: gathered rows would come out of the "
            "operator several times, unequal ones would stop it. Report this configuration."
        )
    if rows <= planned and (mask is None or mask.shape[0] != rows):
        got = "no mask" if mask is None else f"a mask of {mask.shape[0]}"
        raise OperatorError(
            f"{layer_name}: {rows} rows with {got}; expected an entry for each row. Report this configuration."
        )
