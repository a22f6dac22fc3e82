"""Output rows on their way back to the tokens' rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.numerics.minifloat import Elem
from vllm_megamoe.numerics.mx import GROUP, mx_dequantise, mx_quantise
from vllm_megamoe.numerics.switches import Rule
from vllm_megamoe.ops.twin.records import cut, join

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
