"""Checkpoints of the cases: what their tensors hold, what they mean, and the same as the operator's twin takes it.

Written from msModelSlim's own description of its files: W8A8_DYNAMIC has a factor for each output; W4A8_DYNAMIC packs
the outputs 2i and 2i + 1 into a byte, the even one low; MX formats have a power of two for 32 inputs each, FP4 packs
the inputs 2i and 2i + 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from contract.support.cases import EXPERTS, HIDDEN, Case
from contract.support.values import tensor_for
from torch import Tensor

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
_ONE = 127


@dataclass(frozen=True)
class Projection:
    """One matrix [N, K].

    Attributes:
        stored: its tensors by the last part of their names.
        values: what they mean, float64.
        codes, scale: as the twin takes them; codes alone for BF16.
    """

    stored: dict[str, Tensor]
    values: Tensor
    codes: Tensor
    scale: Tensor | None = field(default=None)


@lru_cache(maxsize=27)
def projection(weights: str, name: str, n: int, k: int) -> Projection:
    """The values of one matrix, the same wherever it is asked for."""
    if weights == "BF16":
        plain = tensor_for(f"{name}.weight", (n, k), torch.bfloat16)
        return Projection({"weight": plain}, plain.double(), plain)
    if weights in ("W8A8_DYNAMIC", "W4A8_DYNAMIC"):
        codes, scale = tensor_for(name, (n, k), torch.int8), tensor_for(f"{name}_scale", (n, 1), torch.float32)
        if weights == "W8A8_DYNAMIC":
            stored = {"weight": codes, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
        else:
            codes, scale = codes >> 4, scale * 16
            bias = 8 * codes.sum(1, keepdim=True) * scale
            stored = {"weight": (codes[0::2] & 15) | (codes[1::2] << 4), "weight_scale": scale, "scale_bias": bias}
        return Projection(stored, codes.double() * scale.double(), codes, scale.reshape(-1))
    powers = tensor_for(f"{name}_scale", (n, k // 32), torch.uint8)
    if weights == "W8A8_MXFP8":
        fp8 = (tensor_for(name, (n, k), torch.float32) * 20).to(torch.float8_e4m3fn)
        codes, numbers = fp8.view(torch.uint8), fp8.double()
        stored = {"weight": fp8, "weight_scale": powers}
    else:
        codes = tensor_for(name, (n, k // 2), torch.uint8)
        numbers = E2M1[torch.stack([codes & 15, codes >> 4], dim=-1).long()].reshape(n, k).double()
        stored = {"weight": codes, "weight_scale": powers}
    factors = torch.pow(2.0, powers.double() - _ONE).repeat_interleave(32, dim=1)
    return Projection(stored, numbers * factors, codes, powers)


def projections(case: Case, home: str, width: int) -> dict[str, Projection]:
    """Gate, up and down of one MLP."""
    shapes = {"gate": (width, HIDDEN), "up": (width, HIDDEN), "down": (HIDDEN, width)}
    return {name: projection(case.weights, f"{home}.{name}_proj", *shape) for name, shape in shapes.items()}


def gate() -> Tensor:
    """The router's weight."""
    return tensor_for("gate.weight", (EXPERTS, HIDDEN), torch.bfloat16)


def checkpoint(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the block by its name in the block."""
    yield "gate.weight", gate()
    for home, width in case.homes:
        for name, each in projections(case, home, width).items():
            for part, tensor in each.stored.items():
                yield f"{home}.{name}_proj.{part}", tensor
