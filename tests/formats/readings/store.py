"""A checkpoint folder as named bit arrays: safetensors parsed here from its published layout, nothing converted.

A safetensors file is 8 bytes (little-endian length of the header), a JSON header {name: {dtype, shape, data_offsets}}
whose offsets count from the end of the header, then the data, little-endian, C order. It is parsed by hand, so that
a reading rests on no library that a loader may also use, and so that F8_E8M0 and F8_E4M3 arrive as bytes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from formats.readings.numbers import F64, Ints, bf16_values, e4m3_values, e5m2_values, e8m0_values
from numpy.typing import NDArray

BITS: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "F8_E5M2": np.uint8,
    "F8_E8M0": np.uint8,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
}
"""safetensors dtype -> numpy dtype that holds its bits."""


@dataclass(frozen=True)
class Raw:
    """One tensor: its dtype as the file names it, and its bits."""

    dtype: str
    bits: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stored tensor."""
        return tuple(self.bits.shape)

    def numbers(self) -> F64:
        """The numbers that the tensor holds, as its dtype defines them."""
        if self.dtype == "BF16":
            return bf16_values(self.bits)
        if self.dtype == "F8_E4M3":
            return e4m3_values(self.bits)
        if self.dtype == "F8_E5M2":
            return e5m2_values(self.bits)
        if self.dtype == "F8_E8M0":
            return e8m0_values(self.bits)
        return self.bits.astype(np.float64)


@dataclass(frozen=True)
class Store:
    """All tensors of a folder and its JSON files."""

    tensors: Mapping[str, Raw]
    config: Mapping[str, Any]
    description: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Read a checkpoint folder whole (these are small)."""
        tensors: dict[str, Raw] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors.update(_parse(file))
        side = sorted(folder.glob("quant_model_description*.json"))
        return cls(
            tensors=tensors,
            config=json.loads((folder / "config.json").read_text()),
            description=json.loads(side[0].read_text()) if side else {},
        )

    def with_tensors(self, changed: Mapping[str, Raw]) -> "Store":
        """The same folder with some tensors replaced; for controls."""
        return Store({**self.tensors, **changed}, self.config, self.description)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def raw(self, name: str, *dtypes: str) -> Raw:
        """A tensor whose dtype must be one of `dtypes`."""
        found = self.tensors[name]
        assert not dtypes or found.dtype in dtypes, f"{name}: {found.dtype}, expected {dtypes}"
        return found

    def bits(self, name: str, *dtypes: str) -> NDArray[Any]:
        """Bits of a tensor whose dtype must be one of `dtypes`."""
        return self.raw(name, *dtypes).bits

    def ints(self, name: str, *dtypes: str) -> Ints:
        """Integers of an integer tensor, widened."""
        return self.raw(name, *dtypes).bits.astype(np.int64)

    def numbers(self, name: str, *dtypes: str) -> F64:
        """Numbers of a tensor."""
        return self.raw(name, *dtypes).numbers()

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of config.json."""
        text: Mapping[str, Any] = self.config.get("text_config", self.config)
        return text


def _parse(file: Path) -> Iterator[tuple[str, Raw]]:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        assert end <= len(data), f"{file.name}: {name} ends behind the file"
        flat = np.frombuffer(data[begin:end], dtype=BITS[entry["dtype"]])
        yield name, Raw(entry["dtype"], flat.reshape(entry["shape"]))
