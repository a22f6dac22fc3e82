"""Back at the source: the rows of a token's experts, weighted and summed in float32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.rows import RowForm

CHUNK_ELEMENTS = 1 << 20
"""Float32 numbers that are unpacked at a time: 4 MiB."""


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

    def rows(self, start: int, stop: int, form: RowForm) -> Tensor:
        """float32 [tokens, S, H] of tokens [start, stop); what lies in slots that do not count is undefined."""
        place = self.place[start:stop]
        if len(self.returned):
            rows = form.unpack(self.returned[place.flatten()]).view(*place.shape, form.hidden)
        else:
            rows = torch.zeros(*place.shape, form.hidden, dtype=torch.float32)
        if self.stale is None:
            return rows
        old = self.stale_rows.expand(self.place.numel(), -1).view(*self.place.shape, -1)
        return torch.where(self.stale[start:stop, :, None], old[start:stop], rows)


def weighted_sum(slots: Slots, form: RowForm, weights: Tensor | None) -> Tensor:
    """float32 [T, H]: the products in slot order, multiplied and added separately (op kernel arch22, unpermute).

    Args:
        slots: rows of each token.
        form: of the rows.
        weights: float32 [T, S], None when the rows carry them already.
    """
    tokens, width = slots.place.shape
    counts = slots.filled if slots.stale is None else slots.filled | slots.stale
    everywhere = bool(counts.all())
    total = torch.zeros(tokens, form.hidden, dtype=torch.float32)
    step = max(1, CHUNK_ELEMENTS // (width * form.hidden))
    for start in range(0, tokens, step):
        stop = min(start + step, tokens)
        products = slots.rows(start, stop, form)
        if weights is not None:
            products *= weights[start:stop, :, None]  # R15: fp32 product, then fp32 sum, in k order
        _add_up(products, None if everywhere else counts[start:stop], total[start:stop])
    return total


def _add_up(products: Tensor, counts: Tensor | None, total: Tensor) -> None:
    """Sum float32 [tokens, S, H] over S in order, into zeros; `counts` is bool [tokens, S], None when all do."""
    for s in range(products.shape[1]):
        # The first product is stored, not added to 0, so that -0 stays -0.
        summed = products[:, s] if s == 0 else total + products[:, s]
        total.copy_(summed if counts is None else torch.where(counts[:, s, None], summed, total))
