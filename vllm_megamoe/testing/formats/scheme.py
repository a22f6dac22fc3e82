"""A scheme writes one linear in one format: its tensors, and apart from them what they mean."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_megamoe.testing.formats.address import E2M1_MAGNITUDES, Alphabet, Spot


@dataclass(frozen=True)
class Written:
    """One linear as written.

    Attributes:
        tensors: suffix below the linear's prefix -> tensor of the file.
        values: float64 [N, K], from codes and scales by the format's formula.
        kind: int8, int4, e4m3 or e2m1 where an integer or MX use case holds the values exactly; else None.
        codes: [N, K] then, else None.
        scale: then float64 [N] or E8M0 bytes [N, ceil(K/32)], else None.
        bias: float64 [N] of formats that have one.
    """

    tensors: Mapping[str, torch.Tensor]
    values: NDArray[np.float64]
    kind: str | None = None
    codes: NDArray[Any] | None = None
    scale: NDArray[Any] | None = None
    bias: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Scheme:
    """One way to store a linear.

    Attributes:
        layout: name of the reading that reads it.
        kind: of its numbers: bf16, int8, int4, int4-group, fp8-block, mxfp4 and so on.
        alphabet: its codes.
        write: writes one linear.
        type: msModelSlim's name of it, empty for other tools.
        scale_base, inputs_per_scale: for the count of layers that spell all scales.
    """

    layout: str
    kind: str
    alphabet: Alphabet
    write: Callable[[Spot], Written]
    type: str = ""
    scale_base: int = 2**20
    inputs_per_scale: int = 1
    version: str = "1.0.0"
    group_size: int = 0


def of_integers(
    tensors: Mapping[str, torch.Tensor], codes: NDArray[np.int64], scale: torch.Tensor, kind: str
) -> Written:
    """w = code * scale of the channel."""
    per_row = np.broadcast_to(scale.double().numpy().reshape(-1), (len(codes),)).copy()
    return Written(tensors, codes * per_row.reshape(-1, 1), kind, codes, per_row)


def of_mx(tensors: Mapping[str, torch.Tensor], codes: NDArray[np.int64], scale: torch.Tensor, kind: str) -> Written:
    """w = element * 2^(byte - 127), a byte for 32 inputs; the last group may be short."""
    exponents = np.repeat(scale.numpy().astype(np.int64) - 127, 32, axis=1)[:, : codes.shape[1]]
    values = np.ldexp(element_values(codes, kind), exponents.astype(np.int32))
    return Written(tensors, values, kind, codes.astype(np.uint8), scale.numpy())


def element_values(codes: NDArray[np.int64], kind: str) -> NDArray[np.float64]:
    """Values of E4M3 codes by torch, of E2M1 codes by the list of its magnitudes."""
    if kind == "e4m3":
        return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn).double().numpy()
    magnitude = np.array(E2M1_MAGNITUDES)[codes % 8]
    return np.where(codes >= 8, -magnitude, magnitude)


def e4m3_tensor(codes: NDArray[np.int64]) -> torch.Tensor:
    """Codes as a float8_e4m3fn tensor."""
    return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn)


def halves_of_bytes(codes: NDArray[np.int64]) -> torch.Tensor:
    """[N, K] codes of 4 bits -> uint8 [N, K/2], even k in the low nibble."""
    nibbles = torch.from_numpy(codes & 15).view(len(codes), -1, 2)
    packed: torch.Tensor = nibbles[..., 0] + 16 * nibbles[..., 1]
    return packed.to(torch.uint8)


def words(codes: NDArray[np.int64], bits: int) -> torch.Tensor:
    """[R, C] unsigned codes -> int32 [R, C * bits / 32], the lowest bits first along C; C is padded with zeros."""
    per_word = 32 // bits
    r, c = codes.shape
    padded = np.zeros((r, -(-c // per_word), per_word), np.uint64)
    padded.reshape(r, -1)[:, :c] = codes
    word = (padded << (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))).sum(axis=2)
    return torch.from_numpy(word.astype(np.uint32).view(np.int32))
