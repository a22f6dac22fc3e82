"""What one layer keeps between calls: its plan, operands, buffer and counts; and the call itself."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.method.load_weights import LayerOperands
from vllm_megamoe.method.seat import Seat, gather_shares, share_of
from vllm_megamoe.ops import SymmBuffer, mega_moe
from vllm_megamoe.plan.plan import LayerPlan
from vllm_megamoe.profiles.use_cases import USE_CASES


@dataclass(slots=True)
class LayerState:
    """A layer that is ready to run.

    Attributes:
        name: the layer's prefix.
        plan, seat, operands, buffer: all that a call needs; none of them changes after loading.
        counts: int64 [experts_per_rank], rows that each local expert has received since the start.
        calls: operator calls since the start.
    """

    name: str
    plan: LayerPlan
    seat: Seat
    operands: LayerOperands
    buffer: SymmBuffer
    counts: Tensor = field(init=False)
    calls: int = 0

    def __post_init__(self) -> None:
        self.counts = torch.zeros(self.plan.experts_per_rank, dtype=torch.int64)

    def run(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        """One layer, one step: x [T, H] -> y [T, H], complete on this rank.

        Args:
            x: rows of this rank, or the same rows on every rank when the plan says `replicated`.
            topk_ids: int32 [T, K], global expert ids.
            topk_weights: float32 [T, K].
        """
        rows = x.shape[0]
        if self.plan.tokens == "own":
            return self._call(x, topk_ids, topk_weights)
        start, stop, share = share_of(rows, self.seat)
        y = self._call(x[start:stop], topk_ids[start:stop], topk_weights[start:stop])
        return gather_shares(y, rows, share, self.seat)

    def _call(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        plan, operands = self.plan, self.operands
        if x.shape[0] > plan.num_max_tokens_per_rank:
            raise OperatorError(
                f"{self.name}: {x.shape[0]} rows in one call, but the buffer was planned for "
                f"{plan.num_max_tokens_per_rank} per rank. Raise --max-num-batched-tokens."
            )
        weight_type = USE_CASES[plan.use_case].weight_type
        y, counts = mega_moe(
            x,
            topk_ids,
            topk_weights,
            operands.l1,
            operands.l2,
            self.buffer,
            l1_weights_sf=operands.l1_sf,
            l2_weights_sf=operands.l2_sf,
            l1_bias=operands.l1_bias,
            l2_bias=operands.l2_bias,
            activation=plan.activation,
            activation_clamp=plan.activation_clamp,
            weight1_type=weight_type,
            weight2_type=weight_type,
        )
        self.counts += counts
        self.calls += 1
        return y
