"""Weights and rows of the suite: made from a seed by name, so that ranks and tests have them without sending any."""

import hashlib
import zlib

import torch
from torch import Tensor

FLOAT_SPREAD = 0.05
_E8M0_ONE = 127


def tensor_for(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The values of a checkpoint tensor.

    Floats are normal with a deviation of 0.05, integers and packed values take all their bytes; `*_scale` is positive,
    in E8M0 bytes a power of two from 2^-8 to 2^-5; `*_offset` is zero, as msModelSlim writes it for symmetric weights.
    """
    source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if name.endswith("_offset"):
        return torch.zeros(shape, dtype=dtype)
    if name.endswith("_scale") and dtype == torch.uint8:
        return torch.randint(_E8M0_ONE - 8, _E8M0_ONE - 4, shape, generator=source, dtype=torch.uint8)
    if name.endswith("_scale"):
        return (torch.rand(shape, generator=source) * 1e-3 + 1e-4).to(dtype)
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, generator=source, dtype=torch.int8)
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, generator=source, dtype=torch.uint8)
    return (torch.randn(shape, generator=source) * FLOAT_SPREAD).to(dtype)


def rows_for(name: str, tokens: int, hidden: int) -> Tensor:
    """bf16 [tokens, hidden], normal with a deviation of 1."""
    source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(tokens, hidden, generator=source).to(torch.bfloat16)


def digest(tensor: Tensor) -> str:
    """The first 16 digits of a SHA-256 over the values in plain order."""
    values = bytes(tensor.contiguous().view(torch.uint8).reshape(-1).numpy()) if tensor.numel() else b""
    return hashlib.sha256(values).hexdigest()[:16]
