"""What one MoE layer keeps between calls, and the step that it runs: x [T, H] -> y [T, H].

    the method's apply  ->  moe_layer           ->  LayerState.run   ->  _step          ->  _call  ->  operator
                            hides rows and          its share of         the calls of       fills up
                            ranks from torch's      replicated rows,     a step, joined     a call's
                            compiler                gathered again                          rows

All that does not depend on a step's rows is put together once, at load: activation and limits, operands and their
types, bound to the operator (`ops.api.bind`). Rows per expert are counted on the device and read elsewhere, between
steps (`layer.load_report`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.layer.buffers import Handle
from vllm_megamoe.layer.expert_load import ExpertLoad
from vllm_megamoe.layer.lost_rows import LOST, exchanged_counts, lost_pairs
from vllm_megamoe.layer.routing import Routes, distinct
from vllm_megamoe.layer.rows import Mask, Piece, Seat, cut_step, gather_shares, pad_rows, share_of
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.ops import SymmBuffer
from vllm_megamoe.ops.api import bind
from vllm_megamoe.ops.buffer import BoundCall
from vllm_megamoe.ops.rejection import is_capturing
from vllm_megamoe.plan.layer_plan import LayerPlan


def constant_arguments(plan: LayerPlan, routed: LayerOperands, shared: LayerOperands | None) -> dict[str, Any]:
    """Keyword arguments of `mega_moe` beside x, topk_ids, topk_weights, sym_buffer and x_active_mask.

    Activation, clamp and parameters are always explicit (B41, B43, B44); no parameters are None, not an empty mapping.
    """
    activation = {
        "activation": plan.activation.name,
        "activation_clamp": plan.activation.clamp,
        "activation_params": dict(plan.activation.params) or None,
    }
    if shared is None:
        return routed.arguments() | activation
    own = shared.dispatch_quant_out_dtype
    fed = {} if own == routed.dispatch_quant_out_dtype else {"shared_expert_quant_out_dtype": own}
    return routed.arguments() | shared.shared_arguments() | fed | activation


@dataclass(slots=True)
class LayerState:
    """A layer that is ready to run; nothing of it but the counters changes after loading.

    Attributes:
        name: the layer's prefix.
        plan, seat, operands: all that a call needs.
        handle: the layer's claim on the operator's buffer.
        shared: operands of fused shared experts, None where there are none or vLLM's own path runs them.
        routes: from logical experts to the physical slots of a placement; None where each stands in its own.
        load: rows of each local expert, on the device; those that the engine serves, without profile run and warm-up.
        repeats: whether the router may name an expert twice for a token.
        captured_at: when a graph was last captured with this layer in it, by the monotonic clock; long ago for never.
    """

    name: str
    plan: LayerPlan
    seat: Seat
    operands: LayerOperands
    handle: Handle
    shared: LayerOperands | None = None
    repeats: bool = False
    load: ExpertLoad = field(init=False)
    captured_at: float = -math.inf
    routes: Routes | None = field(init=False)
    _operator: BoundCall = field(init=False, repr=False)

    def __post_init__(self) -> None:
        first = self.operands.l1[0]
        self.routes = self.routes_of(self.plan.slots) if self.plan.slots else None
        self.load = ExpertLoad.start(self.plan.experts_per_rank, self.plan.capacity, inner(first).device)
        if self.plan.capacity.drops:
            LOST.make_room(self.plan.capacity.rows * self.seat.size, inner(first).device)
        self._operator = bind(self.buffer, **constant_arguments(self.plan, self.operands, self.shared))

    def routes_of(self, slots: Sequence[int]) -> Routes:
        """Those of a placement, for this rank's rows."""
        plan = self.plan
        device = inner(self.operands.l1[0]).device
        return Routes(slots, plan.facts.num_experts, plan.capacity.rows, self.seat.rank, device)

    def check_free(self, why: str) -> None:
        """Raise OperatorError where a graph has been captured, which would not see what changes."""
        if self.captured_at != -math.inf:
            raise OperatorError(
                f"{self.name}: a captured graph runs this layer and {why}; expected a placement with the same numbers "
                "of copies. Start the server with the new one."
            )

    @property
    def buffer(self) -> SymmBuffer:
        """The operator's buffer, which other layers may use too."""
        return self.handle.buffer

    @property
    def counts(self) -> Tensor:
        """int64 [experts_per_rank], rows that each local expert has received since the start, warm-up apart."""
        return self.load.counts

    @property
    def steps(self) -> int:
        """Steps since the start, replayed ones too; waits for the device."""
        return int(self.load.steps)

    @property
    def calls(self) -> int:
        """Operator calls since the start, as `steps`."""
        return int(self.load.calls)

    def run(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, active: Mask | None = None) -> Tensor:
        """One layer, one step: x [T, H] -> y [T, H], complete on this rank. A rank without rows must run it too.

        Args:
            x: rows of this rank, or the same rows on every rank when the plan says `replicated`.
            topk_ids: int32 [T, K], global expert ids.
            topk_weights: float32 [T, K].
            active: which rows are real; no expert sees the others and their results are zero. None where all are.

        Raises:
            OperatorError: some rank brings more rows than were planned for; raised on all ranks.
        """
        rows, kind = x.shape[0], self.seat.kind_of_step()
        counted = kind == "served" or (kind == "idle" and self.plan.tokens == "own")
        if is_capturing():
            self.captured_at, counted = monotonic(), True
        if self.plan.tokens == "own":
            if kind == "idle":
                active = Mask.of(torch.zeros(rows, dtype=torch.bool, device=x.device))
            largest = self.seat.largest_rows(rows)
            topk_ids, topk_weights = self._routed(topk_ids, topk_weights)
            self._note_lost(self.seat.first_row(rows), topk_ids, largest, active)
            y = self._step(x, topk_ids, topk_weights, largest, counted, active)
            return y if active is None else y.masked_fill_(active.padding, 0)
        if self.seat.size == 1:
            topk_ids, topk_weights = self._routed(topk_ids, topk_weights)
            self._note_lost(0, topk_ids, rows)
            return self._step(x, topk_ids, topk_weights, rows, counted)
        start, stop, share = share_of(rows, self.seat)
        topk_ids, topk_weights = self._routed(topk_ids[start:stop], topk_weights[start:stop])
        self._note_lost(start, topk_ids, share)
        y = self._step(x[start:stop], topk_ids, topk_weights, share, counted)
        return gather_shares(y, rows, share, self.seat)

    def _routed(self, topk_ids: Tensor, topk_weights: Tensor) -> tuple[Tensor, Tensor]:
        """The router's choice as the operator takes it: distinct experts, by their physical slots."""
        if len(topk_ids) > self.plan.capacity.rows:
            return topk_ids, topk_weights  # the step is rejected, on all ranks
        if self.repeats:
            topk_ids, topk_weights = distinct(topk_ids, topk_weights.float(), self.plan.facts.num_experts)
        return (topk_ids if self.routes is None else self.routes(topk_ids)), topk_weights

    def _note_lost(self, first: int, topk_ids: Tensor, largest: int, active: Mask | None = None) -> None:
        """Where rows may be dropped: work out which of this rank's are, call by call; on all ranks together."""
        plan, facts = self.plan, self.plan.buffer
        if not plan.capacity.drops or largest > plan.capacity.rows:
            return
        sent = (topk_ids >= 0) & (topk_ids < facts.num_experts)
        if active is not None:
            sent &= ~active.padding
        for piece in cut_step(len(topk_ids), largest, plan.capacity):
            own = slice(piece.start, piece.stop)
            ids, pairs = topk_ids[own], sent[own]
            counts = exchanged_counts(ids, pairs, facts.num_experts, self.seat.group)
            room = plan.capacity.max_recv_token_num
            LOST.add(first + piece.start, lost_pairs(ids, pairs, counts, self.seat.rank, plan.experts_per_rank, room))

    def _step(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        largest: int,
        counted: bool,
        active: Mask | None = None,
    ) -> Tensor:
        plan, rows = self.plan, x.shape[0]
        if largest > plan.capacity.rows:
            raise OperatorError(
                f"{self.name}: {largest} rows in one step, but the buffer was planned for {plan.capacity.rows} per "
                "rank. Raise --max-num-batched-tokens."
            )
        if rows > largest:
            raise OperatorError(
                f"{self.name}: this rank brings {rows} rows, but vLLM told all ranks that none brings more than "
                f"{largest}; expected the numbers that vLLM exchanged for the step. Report this model."
            )
        if topk_weights.dtype != torch.float32:
            topk_weights = topk_weights.float()  # a few routers give bf16, which A2/A3 would misread
        if plan.fold_scaling != 1.0:
            topk_weights = topk_weights * plan.fold_scaling
        if plan.padding.hidden != x.shape[1]:
            x = pad(x, (0, plan.padding.hidden - x.shape[1]))
        pieces = cut_step(rows, largest, plan.capacity)
        parts = [self._call(x, topk_ids, topk_weights, piece, counted, active) for piece in pieces]
        if counted:
            self.load.add_step(len(pieces))
        y = parts[0] if len(parts) == 1 else torch.cat(parts)
        return y if y.shape[1] == plan.padding.hidden_was else y[:, : plan.padding.hidden_was].contiguous()

    def _call(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, piece: Piece, counted: bool, active: Mask | None
    ) -> Tensor:
        if piece.stop - piece.start != x.shape[0]:
            own = slice(piece.start, piece.stop)
            x, topk_ids, topk_weights = x[own], topk_ids[own], topk_weights[own]
            active = None if active is None else active[own]
        masked = self.plan.capacity.pad == "dp_max"
        given = pad_rows(x, topk_ids, topk_weights, piece.rows, masked=masked, active=active)
        y, expert_token_nums = self._operator(given.x, given.topk_ids, given.topk_weights, given.mask)
        if counted:
            self.load.add(expert_token_nums)
        return y if y.shape[0] == x.shape[0] else y[: x.shape[0]]


_find: Callable[[str], LayerState] | None = None


def set_finder(find: Callable[[str], LayerState]) -> None:
    """Tell the op how to get a layer by its name; the lane knows where the running engine keeps them."""
    global _find
    _find = find


@torch.library.custom_op("vllm_megamoe::moe_layer", mutates_args=())
def moe_layer(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, layer_name: str) -> Tensor:
    """x [T, H], topk_ids [T, K], topk_weights [T, K] -> y [T, H], complete on every rank that brought these rows.

    Raises:
        OperatorError: no engine with MoE layers runs in this process; see `LayerState.run` too.
    """
    if _find is None:
        raise OperatorError(
            f"moe_layer: no layer {layer_name!r}, because no MoE layer was built in this process; expected a running "
            "engine. Serve the model with --quantization megamoe, or call vllm_megamoe.ops.mega_moe."
        )
    return _find(layer_name).run(x, topk_ids, topk_weights)


@moe_layer.register_fake
def _(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, layer_name: str) -> Tensor:
    del topk_ids, topk_weights, layer_name
    return torch.empty_like(x)
