"""Rows on their way back to the tokens' rank: their form, and their sum at home.

A row travels as it is, or quantised (combine_quant_mode). Back at the source the rows of a token's experts are weighted
and summed in float32, in slot order. Slots that no row landed in belong to masked tokens and to rows that a capacity
dropped; the device sums whatever lies there, and what that is stays open: a switch here (numerics.stale_slots).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.numerics.mx import GROUP, Elem, mx_dequantise, mx_quantise
from vllm_megamoe.numerics.switches import Rule
from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.routing import cut, join, rows_at
from vllm_megamoe.ops.twin.state import state_of

QUANTISED: dict[int, Elem] = {3: "e5m2", 4: "e4m3"}
"""combine_quant_mode -> element format of the rows (operator_readme.txt, combineQuantMode)."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a row [H] is written into bytes.

    Attributes:
        elem: MX format, None for rows that travel as they are.
        dtype: of the rows.
        hidden: H.
        rule: of the numerics.
    """

    elem: Elem | None
    dtype: torch.dtype
    hidden: int
    rule: Rule

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.hidden * self.dtype.itemsize if self.elem is None else self.hidden + -(-self.hidden // GROUP)

    def pack(self, rows: Tensor) -> Tensor:
        """[n, H] -> uint8 [n, width]."""
        if self.elem is None:
            return rows.contiguous().view(torch.uint8)
        return join(*mx_quantise(rows, self.elem, self.rule))  # R14: combine quantisation, MX groups of 32

    def unpack(self, packed: Tensor) -> Tensor:
        """uint8 [n, width] -> float32 [n, H]."""
        if self.elem is None:
            return packed.view(self.dtype).float()
        codes, scales = cut(packed, [(self.hidden, torch.uint8), (-(-self.hidden // GROUP), torch.uint8)])
        return mx_dequantise(codes, scales, self.elem)


CHUNK_ELEMENTS = 1 << 20
"""Float32 numbers that are unpacked at a time: 4 MiB."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the rows of each token are.

    Attributes:
        returned: uint8 [P, width], rows that came back.
        place: int64 [T, S], row of each slot; a slot is a (token, k), or a (token, card) where cards merge.
        filled: bool [T, S], slots that a row landed in; None when one landed in every slot.
        stale: bool [T, S], slots that are summed although nothing landed; None when there are none. Slots that are
            neither filled nor stale belong to ids of -1 and add nothing.
        stale_rows: float32 [T * S, H] or [1, H], what those hold; None without any.
    """

    returned: Tensor
    place: Tensor
    filled: Tensor | None
    stale: Tensor | None
    stale_rows: Tensor | None

    def rows(self, start: int, stop: int, form: RowForm) -> Tensor:
        """float32 [tokens, S, H] of tokens [start, stop); what lies in slots that do not count is undefined."""
        place = self.place[start:stop]
        if len(self.returned):
            rows = form.unpack(rows_at(self.returned, place.flatten())).view(*place.shape, form.hidden)
        else:
            rows = torch.zeros(*place.shape, form.hidden, dtype=torch.float32)
        if self.stale is None or self.stale_rows is None:
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
    counts = slots.filled if slots.filled is None or slots.stale is None else slots.filled | slots.stale
    if counts is not None and bool(counts.all()):
        counts = None
    total = torch.zeros(tokens, form.hidden, dtype=torch.float32)
    step = max(1, CHUNK_ELEMENTS // (width * form.hidden))
    for start in range(0, tokens, step):
        stop = min(start + step, tokens)
        products = slots.rows(start, stop, form)
        if weights is not None:
            products *= weights[start:stop, :, None]  # R15: fp32 product, then fp32 sum, in k order
        _add_up(products, None if counts is None else counts[start:stop], total[start:stop])
    return total


def _add_up(products: Tensor, counts: Tensor | None, total: Tensor) -> None:
    """Sum float32 [tokens, S, H] over S in order, into zeros; `counts` is bool [tokens, S], None when all do."""
    for s in range(products.shape[1]):
        # The first product is stored, not added to 0, so that -0 stays -0.
        if counts is None:
            total.copy_(products[:, s]) if s == 0 else total.add_(products[:, s])
            continue
        summed = products[:, s] if s == 0 else total + products[:, s]
        total.copy_(torch.where(counts[:, s, None], summed, total))


def masked_rows(call: Call) -> Tensor:
    """bool [T], tokens that x_active_mask takes out."""
    mask = call.given.mask
    return torch.zeros(len(call.sent), dtype=torch.bool) if mask is None else mask == 0


def undefined_rows(call: Call) -> Tensor | None:
    """bool [T], rows of y that a product leaves undefined: some pair of theirs is not sent. None in profile `none`.

    The device sums the slots of such pairs whatever lies in them (op kernels; operator_readme.txt says nothing). A
    numerics.stale_slots that was chosen on purpose wins over the mark.
    """
    config = call.config
    if config.found_profile.product == "none" or config.numerics.stale_slots != "zero":
        return None
    return ~call.sent.all(dim=1)


def old_rows(call: Call, slots: bool = True) -> Tensor:
    """Content of slots that nothing lands in.

    Args:
        call: of the slots.
        slots: whether there is a slot per (token, k); merged rows have none to remember, they count as zero.

    Returns:
        float32 [1, H], the same for all, or [T * K, H].
    """
    rule = call.config.numerics.stale_slots
    if rule == "old" and slots:
        return _memory(call)[: call.sent.numel()]
    return torch.full((1, call.hidden), torch.nan if rule == "nan" else 0.0, dtype=torch.float32)


def remember(call: Call, pairs: Tensor, rows: Callable[[], Tensor]) -> None:
    """Keep what landed, for the calls to come; only rule `old` pays for it."""
    if call.config.numerics.stale_slots == "old":
        _memory(call)[pairs] = rows()


def _memory(call: Call) -> Tensor:
    """float32 [>= T * K, H] of the buffer, zero where nothing ever landed."""
    state, needed = state_of(call.buffer), call.sent.numel()
    held = state.old_slots
    if held is None or held.shape[1] != call.hidden:
        held = torch.zeros(0, call.hidden, dtype=torch.float32)
    if len(held) < needed:
        held = torch.cat([held, torch.zeros(needed - len(held), call.hidden, dtype=torch.float32)])
    state.old_slots = held
    return held
