"""`mega_moe` made ready for one layer: all arguments but the rows are fixed, and looked at once, not at every call.

    operator = bind(sym_buffer, l1_weights=..., l2_weights=..., activation=..., ...)
    y, expert_token_nums = operator(x, topk_ids, topk_weights, x_active_mask)

The same call as `mega_moe` with the same arguments, checks included: a form of rows (types, sizes, mask or none) that
came before under the same settings is not judged again. What may not change behind its back: the lists and tensors that
were bound, and the buffer's attributes. A buffer that was destroyed is rejected, one that was renewed is bound anew.
"""

from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.ops.arguments import CallArguments
from vllm_megamoe.ops.buffer import BoundCall, Held, SymmBuffer

_NO_ROWS = torch.empty(0)


def bind(sym_buffer: SymmBuffer, **constant: Any) -> BoundCall:
    """See above.

    Args:
        sym_buffer: of `get_symm_buffer_for_mega_moe`.
        constant: arguments of `mega_moe`, without x, topk_ids, topk_weights, sym_buffer and x_active_mask.
    """
    rows: dict[str, Any] = {"x": _NO_ROWS, "topk_ids": _NO_ROWS, "topk_weights": _NO_ROWS}
    fixed = CallArguments(sym_buffer=sym_buffer, **rows, **constant)
    seen: Held | None = None
    run: BoundCall

    def call(
        x: Tensor, topk_ids: Tensor, topk_weights: Tensor, x_active_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        nonlocal seen, run
        held = sym_buffer.held
        if held is not seen:
            run, seen = held.bind(fixed), held
        return run(x, topk_ids, topk_weights, x_active_mask)

    return call
