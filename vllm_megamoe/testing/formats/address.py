"""Index tensors: the layers of a generated checkpoint together spell the address of every weight.

An element of a layer has an address: its place in (expert, projection, n, k), a number below the count of the layer's
weights. Its word is that address after a reversible stirring, written in a base as large as the format has codes of
distinct value; layer 0 stores the lowest digit of each word, layer 1 the next. So over all layers each weight says
which it is, and a row, column, nibble or expert that went astray says where it came from; and because of the stirring,
neighbours differ in every layer (plain digits would repeat along an axis, and hide a swap). Scales spell the addresses
of channels and groups in the same way. One more layer holds noise: every code of the format, those of equal value (-0)
and the largest included.

`fill="noise"` makes all layers noise, of a size that a model can run with.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.int64]
GATE, UP, DOWN = 0, 1, 2
Fill = Literal["address", "noise"]


@dataclass(frozen=True)
class Shape:
    """H, I, routed experts. H = 2 I by default: the shape that cannot tell halves from transposed halves."""

    hidden: int = 128
    intermediate: int = 64
    experts: int = 4

    def size(self, projection: int) -> tuple[int, int]:
        """(N, K) of gate, up or down."""
        return (self.hidden, self.intermediate) if projection == DOWN else (self.intermediate, self.hidden)


TILED = Shape(256, 192)
"""Two tiles of 128 along H, one and a half along I."""


@dataclass(frozen=True)
class Alphabet:
    """Codes of a format.

    Attributes:
        spelling: codes of distinct value, which spell digits.
        noise: all codes that may occur.
        rms: of the values of `noise`.
    """

    spelling: tuple[int, ...]
    noise: tuple[int, ...]
    rms: float


E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0 to 7; 8 to 15 are their negatives (OCP Microscaling Formats 1.0, 5.3.3)."""


def _float_codes(values: NDArray[np.float64]) -> Alphabet:
    """The alphabet of a format whose code n has the value `values[n]`, its upper half the negatives."""
    bits = len(values).bit_length() - 1
    finite = [code for code in range(2**bits) if np.isfinite(values[code])]
    distinct = tuple(code for code in finite if code != 2 ** (bits - 1))  # without -0
    return Alphabet(distinct, tuple(finite), float(np.sqrt(np.mean(values[finite] ** 2))))


INT4 = Alphabet(tuple(range(-8, 8)), tuple(range(-8, 8)), 4.6)
INT8 = Alphabet(tuple(range(-128, 128)), tuple(range(-128, 128)), 74.0)
E4M3 = _float_codes(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy())
E2M1 = _float_codes(np.array([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)]))
BF16 = Alphabet(tuple(range(0x3800, 0x4000)), (), 1.0)
"""Bit patterns of 16 octaves, 2^-15 to just below 2; noise is drawn elsewhere."""


@dataclass(frozen=True)
class Spot:
    """One projection of one expert in one layer.

    Attributes:
        shape: of the model.
        ordinal: which MoE layer, counted from 0; it says which digit is stored.
        planes: how many layers spell; later ones are noise.
        expert: routed experts first, a shared one behind them.
        projection: GATE, UP or DOWN.
    """

    shape: Shape
    ordinal: int
    planes: int
    expert: int
    projection: int
    fill: Fill = "address"

    @property
    def n(self) -> int:
        """Output features."""
        return self.shape.size(self.projection)[0]

    @property
    def k(self) -> int:
        """Input features."""
        return self.shape.size(self.projection)[1]

    @property
    def noise(self) -> bool:
        """Whether this layer is noise."""
        return self.fill == "noise" or self.ordinal >= self.planes

    def random(self) -> np.random.Generator:
        """Numbers of this place, the same in each run."""
        return np.random.default_rng([self.ordinal, self.expert, self.projection])

    def addresses(self, *shape: int) -> Array:
        """Addresses of `shape` things per projection, unique in the layer.

        Groups, tiles and tensors are as many in gate and up as in down; channels are not.
        """
        count = int(np.prod(shape))
        return ((self.expert * 3 + self.projection) * self._room(count) + np.arange(count)).reshape(shape)

    def _room(self, count: int) -> int:
        return max(self.shape.hidden, self.shape.intermediate) if count == self.n else count

    def weight_addresses(self) -> Array:
        """[N, K]: gate, up and down have N * K weights each."""
        first = (self.expert * 3 + self.projection) * self.n * self.k
        return first + np.arange(self.n * self.k).reshape(self.n, self.k)

    def codes(self, alphabet: Alphabet) -> Array:
        """[N, K] codes: this layer's digit of each address, or noise."""
        if self.noise:
            return self.random().choice(np.array(alphabet.noise, np.int64), (self.n, self.k))
        base = len(alphabet.spelling)
        digits = digits_needed((self.shape.experts + 1) * 3 * self.n * self.k, base)
        places = stir(self.weight_addresses(), base, digits) // base**self.ordinal % base
        found: Array = np.array(alphabet.spelling, np.int64)[places]
        return found

    def digits(self, base: int, *shape: int) -> Array:
        """This layer's digit of the addresses of scales or zero points."""
        if self.noise:
            return self.random().integers(0, base, shape)
        addresses = self.addresses(*shape)
        digits = digits_needed((self.shape.experts + 1) * 3 * self._room(addresses.size), base)
        found: Array = stir(addresses, base, digits) // base ** (self.ordinal % digits) % base
        return found

    def octave(self, alphabet: Alphabet) -> int:
        """Exponent of a scale that makes weights of rms about 1 / sqrt(K)."""
        return -round(float(np.log2(alphabet.rms * np.sqrt(self.k)))) - 1


def float32_scales(spot: Spot, alphabet: Alphabet, *shape: int) -> torch.Tensor:
    """Distinct float32 of one octave, all with a low mantissa bit set: rounding them to bfloat16 shows."""
    first = int(np.float32(2.0 ** spot.octave(alphabet)).view(np.int32))
    bits = first + 1 + 2 * (spot.addresses(*shape) * 16 + spot.ordinal)
    assert int(bits.max()) < first + 2**23, "more scales than one octave holds"
    return torch.from_numpy(bits.astype(np.int32)).view(torch.float32)


def bfloat16_scales(spot: Spot, alphabet: Alphabet, *shape: int) -> torch.Tensor:
    """One of an octave's bfloat16 but its power of two: a digit in base 127."""
    first = int(torch.tensor(2.0 ** spot.octave(alphabet), dtype=torch.bfloat16).view(torch.int16))
    return torch.from_numpy((first + 1 + spot.digits(127, *shape)).astype(np.int16)).view(torch.bfloat16)


def float16_scales(spot: Spot, alphabet: Alphabet, *shape: int) -> torch.Tensor:
    """One of the 1024 float16 of an octave."""
    first = int(torch.tensor(2.0 ** spot.octave(alphabet), dtype=torch.float16).view(torch.int16))
    return torch.from_numpy((first + spot.digits(1024, *shape)).astype(np.int16)).view(torch.float16)


def e8m0_scales(spot: Spot, alphabet: Alphabet, *shape: int) -> torch.Tensor:
    """uint8 E8M0 bytes: a digit in base 16, 2^-9 to 2^6; in noise three octaves."""
    if spot.noise:
        return torch.from_numpy((127 + spot.octave(alphabet) + spot.digits(3, *shape)).astype(np.uint8))
    return torch.from_numpy((118 + spot.digits(16, *shape)).astype(np.uint8))


FACTOR, LATER = 1_000_003, 7_368_787
"""Primes that divide no base in use."""


def stir(addresses: Array, base: int, digits: int) -> Array:
    """Addresses below base^digits -> words, one for one: times FACTOR, digits reversed, times LATER."""
    room = base**digits
    words: Array = _reversed_digits(addresses % room * FACTOR % room, base, digits) * LATER % room
    return words


def unstir(words: Array, base: int, digits: int) -> Array:
    """The addresses of words."""
    room = base**digits
    stirred: Array = _reversed_digits(words * pow(LATER, -1, room) % room, base, digits)
    addresses: Array = stirred * pow(FACTOR, -1, room) % room
    return addresses


def _reversed_digits(numbers: Array, base: int, digits: int) -> Array:
    result = np.zeros_like(numbers)
    for place in range(digits):
        result += numbers // base**place % base * base ** (digits - 1 - place)
    return result


def planes_needed(shape: Shape, base: int, scale_base: int, inputs_per_scale: int) -> int:
    """Layers that spell all weights of a layer in `base`, and all scales in `scale_base`; one shared expert counted."""
    area = shape.hidden * shape.intermediate
    scales = max(shape.hidden, shape.intermediate, area // inputs_per_scale)
    experts = 3 * (shape.experts + 1)
    return max(digits_needed(experts * area, base), digits_needed(experts * scales, scale_base))


def digits_needed(count: int, base: int) -> int:
    """How many digits write the numbers below `count`."""
    digits = 1
    while base**digits < count:
        digits += 1
    return digits
