"""Where rows land in a token's own memory, and what is summed there.

The kernel reads every slot of every token, also those that nothing landed in during this call.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.combine import Slots, weighted_sum
from vllm_megamoe.ops.twin.rows import RowForm
from vllm_megamoe.simulator.memory import Memory


@dataclass(frozen=True, slots=True)
class Landing:
    """The slots [T, K] of one call in a memory.

    Attributes:
        memory: of this rank.
        tokens: T of this rank.
        topk: K.
        form: of a row.
        record_bytes: stride of a dispatch record. On A2/A3 the slots lie behind tokens * K records, and a rank that
            writes into them counts with its own number of tokens (op kernel arch22); 0 where their place is fixed.
    """

    memory: Memory
    tokens: int
    topk: int
    form: RowForm
    record_bytes: int

    def base(self, tokens: int) -> int:
        """Where a rank with that many tokens believes the slots to begin."""
        return tokens * self.topk * self.record_bytes

    def write(self, rows: Tensor, pairs: Tensor, writer_tokens: Tensor) -> None:
        """Let rows land.

        Args:
            rows: uint8 [n, width].
            pairs: int64 [n], token * K + k.
            writer_tokens: int64 [n], T of the rank that each row comes from.
        """
        width = self.form.width
        for tokens in set(writer_tokens.tolist()):
            mine = writer_tokens == tokens
            start = self.base(tokens)
            area = self.memory.area(start, start + self.tokens * self.topk * width)
            area.view(-1, width)[pairs[mine]] = rows[mine]

    def total(self, weights: Tensor | None) -> Tensor:
        """float32 [T, H], the sum over all slots.

        Args:
            weights: float32 [T, K], None when the rows carry them already.
        """
        count, start = self.tokens * self.topk, self.base(self.tokens)
        held = self.memory.area(start, start + count * self.form.width).view(count, self.form.width)
        place = torch.arange(count).view(self.tokens, self.topk)
        filled = torch.ones(self.tokens, self.topk, dtype=torch.bool)
        return weighted_sum(Slots(held, place, filled, None, torch.zeros(1, self.form.hidden)), self.form, weights)
