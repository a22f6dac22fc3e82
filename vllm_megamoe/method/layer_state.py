"""What one layer keeps between calls: its plan, operands, buffer and counts; and the call itself."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.method.call_arguments import constant_arguments
from vllm_megamoe.method.expert_load import ExpertLoad
from vllm_megamoe.method.load_weights import LayerOperands
from vllm_megamoe.method.pad_rows import pad_rows
from vllm_megamoe.method.pieces import Piece, cut_step
from vllm_megamoe.method.seat import Seat, gather_shares, share_of
from vllm_megamoe.ops import SymmBuffer, mega_moe
from vllm_megamoe.plan.layer_plan import LayerPlan


@dataclass(slots=True)
class LayerState:
    """A layer that is ready to run; nothing of it but the counters changes after loading.

    Attributes:
        name: the layer's prefix.
        plan, seat, operands, buffer: all that a call needs.
        shared: operands of fused shared experts, None where there are none or vLLM's own path runs them.
        load: rows of each local expert, on the device.
        steps, calls: steps and operator calls since the start.
    """

    name: str
    plan: LayerPlan
    seat: Seat
    operands: LayerOperands
    buffer: SymmBuffer
    shared: LayerOperands | None = None
    load: ExpertLoad = field(init=False)
    steps: int = 0
    calls: int = 0
    _constant: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        first = self.operands.l1[0]
        self.load = ExpertLoad.start(self.plan.experts_per_rank, self.plan.capacity, inner(first).device)
        self._constant = constant_arguments(self.plan, self.operands, self.shared)

    @property
    def counts(self) -> Tensor:
        """int64 [experts_per_rank], rows that each local expert has received since the start."""
        return self.load.counts

    def run(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """One layer, one step: x [T, H] -> y [T, H], complete on this rank. A rank without rows must run it too.

        Args:
            x: rows of this rank, or the same rows on every rank when the plan says `replicated`.
            topk_ids: int32 [T, K], global expert ids.
            topk_weights: float32 [T, K].

        Raises:
            OperatorError: some rank brings more rows than were planned for; raised on all ranks.
        """
        rows = x.shape[0]
        self.steps += 1
        if self.plan.tokens == "own":
            return self._step(x, topk_ids, topk_weights, self.seat.largest_rows(rows))
        start, stop, share = share_of(rows, self.seat)
        y = self._step(x[start:stop], topk_ids[start:stop], topk_weights[start:stop], share)
        return gather_shares(y, rows, share, self.seat)

    def _step(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, largest: int) -> Tensor:
        plan, rows = self.plan, x.shape[0]
        if largest > plan.capacity.rows:
            raise OperatorError(
                f"{self.name}: {largest} rows in one step, but the buffer was planned for {plan.capacity.rows} per "
                "rank. Raise --max-num-batched-tokens."
            )
        if rows > largest:
            raise OperatorError(
                f"{self.name}: this rank brings {rows} rows, but vLLM told all ranks that none brings more than "
                f"{largest}; wanted the numbers that vLLM exchanged for the step. Report this model."
            )
        topk_weights = topk_weights.float()  # a few routers give bf16, which A2/A3 would misread; else no copy
        if plan.fold_scaling != 1.0:
            topk_weights = topk_weights * plan.fold_scaling
        if plan.padding.hidden != x.shape[1]:
            x = pad(x, (0, plan.padding.hidden - x.shape[1]))
        pieces = cut_step(rows, largest, plan.capacity)
        parts = [self._call(x, topk_ids, topk_weights, piece) for piece in pieces]
        y = parts[0] if len(parts) == 1 else torch.cat(parts)
        return y[:, : plan.padding.hidden_was].contiguous()

    def _call(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, piece: Piece) -> Tensor:
        own = slice(piece.start, piece.stop)
        masked = self.plan.capacity.pad == "dp_max"
        given = pad_rows(x[own], topk_ids[own], topk_weights[own], piece.rows, masked=masked)
        y, expert_token_nums = mega_moe(
            given.x,
            given.topk_ids,
            given.topk_weights,
            sym_buffer=self.buffer,
            x_active_mask=given.mask,
            **self._constant,
        )
        self.load.add(expert_token_nums)
        self.calls += 1
        return y[: piece.stop - piece.start]
