"""Back at the source: the rows of a token's experts, weighted and summed in float32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.rows import RowForm


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the rows of each token are.

    Attributes:
        returned: uint8 [P, width], rows that came back.
        place: int64 [T, S], row of each slot; a slot is a (token, k), or a (token, card) where cards merge.
        filled: bool [T, S], slots that a row landed in.
        stale: bool [T, S], slots that are summed although nothing landed; None when there are none. Slots that are
            neither filled nor stale belong to ids of -1 and add nothing.
        stale_rows: float32 [T * S, H] or [1, H], what those hold.
    """

    returned: Tensor
    place: Tensor
    filled: Tensor
    stale: Tensor | None
    stale_rows: Tensor

    def column(self, s: int, form: RowForm) -> tuple[Tensor, Tensor | None]:
        """float32 [T, H] in slot s of every token, and bool [T, 1] where they count; None: everywhere."""
        filled = self.filled[:, s]
        whole = bool(filled.all())
        if len(self.returned):
            rows = form.unpack(self.returned[self.place[:, s]])
        else:
            rows = torch.zeros(len(filled), form.hidden)
        if whole or self.stale is None:
            return rows, None if whole else filled[:, None]
        stale = self.stale[:, s]
        old = self.stale_rows.expand(self.place.numel(), -1).view(*self.place.shape, -1)[:, s]
        return torch.where(stale[:, None], old, rows), (filled | stale)[:, None]


def weighted_sum(slots: Slots, form: RowForm, weights: Tensor | None) -> Tensor:
    """float32 [T, H]: the products in slot order, multiplied and added separately (op kernel arch22, unpermute).

    Args:
        slots: rows of each token.
        form: of the rows.
        weights: float32 [T, S], None when the rows carry them already.
    """
    total = torch.zeros(len(slots.place), form.hidden)
    for s in range(slots.place.shape[1]):
        rows, counts = slots.column(s, form)
        if weights is not None:
            rows *= weights[:, s, None]  # R15: fp32 product, then fp32 sum, in k order
        # The first product is stored, not added to 0, so that -0 stays -0.
        summed = rows if s == 0 else rows.add_(total)
        total = summed if counts is None else torch.where(counts, summed, total)
    return total
