"""The record of a dispatched row: the token's bytes, and behind them what the modes need at the experts' rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.records import Widths, cut, join
from vllm_megamoe.ops.twin.routing import Routes


@dataclass(frozen=True, slots=True)
class RecordForm:
    """What a record holds.

    Attributes:
        token_bytes: of the token.
        with_weight: whether the router weight follows (topk_weights_type=1, and for merging on the card).
        with_place: whether token and k follow (for merging on the card).
    """

    token_bytes: int
    with_weight: bool
    with_place: bool

    @property
    def width(self) -> int:
        """Bytes of a record."""
        return self.token_bytes + 4 * self.with_weight + 8 * self.with_place

    def pack(self, tokens: Tensor, routes: Routes, weights: Tensor) -> Tensor:
        """Token bytes [T, token_bytes], float32 weights [T, K] -> uint8 [P, width], a record per routed pair."""
        parts = [tokens[routes.tokens]]
        if self.with_weight:
            parts.append(weights.flatten()[routes.pairs])
        if self.with_place:
            place = torch.stack([routes.tokens, routes.pairs % routes.topk], dim=1)
            parts.append(place.to(torch.int32))
        return join(*parts)

    def unpack(self, records: Tensor) -> "Received":
        """uint8 [R, width] taken apart."""
        widths: Widths = [(self.token_bytes, torch.uint8)]
        if not self.with_weight and not self.with_place:
            return Received(records, None, None)
        widths += [(1, torch.float32)] * self.with_weight + [(2, torch.int32)] * self.with_place
        tokens, *rest = cut(records, widths)
        weights = rest.pop(0) if self.with_weight else None
        return Received(tokens, weights, rest[0].to(torch.int64) if self.with_place else None)


@dataclass(frozen=True, slots=True)
class Received:
    """Records at the experts' rank.

    Attributes:
        tokens: uint8 [R, token_bytes].
        weights: float32 [R, 1].
        place: int64 [R, 2]: token on its source rank, and k.
    """

    tokens: Tensor
    weights: Tensor | None
    place: Tensor | None
