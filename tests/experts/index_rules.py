"""Where an element lies in an operand, by the index formulas of docs/layouts.md; and experts for the tests.

Nothing here calls the package's own packings: a value is found at the place that the formula names.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vllm_megamoe.experts.canonical import DenseExperts, IntExperts, MxExperts
from vllm_megamoe.layout.formatted import inner

Array = NDArray[Any]


def offset(r: Array, c: Array, rows: int, c0: int) -> Array:
    """FRACTAL_NZ of [rows, C]: blocks of c0 columns, each of rows filled up to a multiple of 16."""
    tall = -(-rows // 16) * 16
    return (c // c0) * tall * c0 + (r // 16) * 16 * c0 + (r % 16) * c0 + c % c0


def flat(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes as they lie in memory."""
    return inner(tensor).contiguous().view(torch.uint8).flatten().numpy()


@dataclass(frozen=True, slots=True)
class Place:
    """How one weight of a use case is stored.

    Attributes:
        bits: of an element.
        k_first: [K, N] instead of [N, K].
        c0: elements of a block, 0 for ND.
    """

    bits: int
    k_first: bool
    c0: int


# operator_readme.txt, scenario tables and MXFP constraints; blocks of 32 bytes, FRACTAL_NZ_C0_32 of 32 elements.
PLACES = {
    "a16w16": (Place(16, True, 0), Place(16, True, 0)),
    "a8w8-int": (Place(8, True, 32), Place(8, True, 32)),
    "a8w4-int": (Place(4, True, 64), Place(4, True, 64)),
    "a8w8-fp": (Place(8, False, 0), Place(8, False, 0)),
    "a8w4-fp": (Place(4, False, 32), Place(4, False, 32)),
    "a4w4-fp": (Place(4, False, 64), Place(4, False, 32)),
}


def codes_in(stored: NDArray[np.uint8], place: Place, n: int, k: int) -> Array:
    """Element [n, k] for all n and k out of one expert's bytes, as unsigned codes; every place is another one."""
    rows, columns = (k, n) if place.k_first else (n, k)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    where = offset(r, c, rows, place.c0) if place.c0 else r * columns + c
    assert len(np.unique(where)) == rows * columns
    if place.bits == 16:
        found = stored.view(np.uint16)[where]
    elif place.bits == 8:
        found = stored[where]
    else:
        found = stored[where // 2] >> (4 * (where % 2)).astype(np.uint8) & 15
    return found.T if place.k_first else found


def random_codes(rng: np.random.Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng.integers(low, high, shape).astype(np.int16))


def make_dense(rng: np.random.Generator, experts: int, hidden: int, width: int) -> DenseExperts:
    """BF16 with another size for every expert, row and group of 32 inputs."""

    def uneven(rows: int, columns: int) -> Tensor:
        groups = np.exp2(rng.integers(-6, 3, (experts, rows, -(-columns // 32)))).repeat(32, axis=2)[:, :, :columns]
        return torch.from_numpy(rng.standard_normal((experts, rows, columns)) * groups).to(torch.bfloat16)

    return DenseExperts(uneven(2 * width, hidden), uneven(hidden, width))


def make_ints(rng: np.random.Generator, bits: int, experts: int, hidden: int, width: int) -> IntExperts:
    """Codes of the whole range, a scale of its own for every channel."""
    span = 2 ** (bits - 1)
    scales = [
        torch.from_numpy(np.float32(rng.uniform(1e-4, 1e-2, s))) for s in ((experts, 2 * width), (experts, hidden))
    ]
    shapes = ((experts, 2 * width, hidden), (experts, hidden, width))
    w13, w2 = (random_codes(rng, -span, span, *shape).to(torch.int8) for shape in shapes)
    return IntExperts(w13, scales[0], w2, scales[1], 4 if bits == 4 else 8)


def make_mx(rng: np.random.Generator, elem: str, experts: int, hidden: int, width: int) -> MxExperts:
    """Codes of the whole range, a scale byte of its own for every group."""
    per_byte = 2 if elem == "e2m1" else 1
    shapes = (
        (experts, 2 * width, hidden // per_byte),
        (experts, 2 * width, -(-hidden // 32)),
        (experts, hidden, width // per_byte),
        (experts, hidden, -(-width // 32)),
    )
    w13, s13, w2, s2 = (random_codes(rng, 0, 256, *shape).to(torch.uint8) for shape in shapes)
    return MxExperts(w13, s13, w2, s2, elem)  # type: ignore[arg-type]
