"""The safetensors files of a folder: what each tensor is and where it lies, from headers and index alone.

A file is eight bytes (little-endian length of the header), a JSON object {name: {dtype, shape, data_offsets}}, and the
data without a hole. The header is parsed here and once a file, not by the library: the library stops at the first fault
and names no tensor. Weights are read through the library (`checkpoint.reading`).

All of it is untrusted: a file is looked for under its own name inside the folder alone, and nothing but JSON is parsed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vllm_megamoe.checkpoint.index import INDEX, against_files, glob, read_index
from vllm_megamoe.checkpoint.problem import COPY, Problem

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""The format's word -> torch's dtype."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MOST_HEADER = 100_000_000
"""Bytes; the library's own limit."""


class Entry(NamedTuple):
    """One tensor.

    Attributes:
        name: as the file calls it.
        file: name of the file within the folder.
        dtype: the format's word, a key of DTYPES or one that torch has no type for.
        shape: of the stored tensor.
        begin, end: its bytes within the file.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.end - self.begin


@dataclass(slots=True)
class Headers:
    """All tensors of a folder.

    Attributes:
        folder: of the checkpoint.
        entries: by name; of two with one name the first file's.
        problems: of files and index.
        index: name of the index, empty without one.
    """

    folder: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    index: str = ""


def has_weights(folder: Path) -> bool:
    """Whether any weights lie there, safe or not; a folder with config files alone is for planning."""
    named = (True for pattern in ("*.safetensors.index.json", *_PICKLES) for _ in glob(folder, pattern))
    return any(named) or any(folder.glob("*.safetensors"))


def read_headers(folder: Path) -> Headers:
    """Every header and the index; what is wrong is in the result, nothing is raised for it.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    index = read_index(folder)
    found = Headers(folder, problems=list(index.problems), index=index.name)
    named = dict.fromkeys(index.where.values())
    files = [file.name for file in glob(folder, "*.safetensors")]
    strange = sorted(place.name for place in folder.glob("*.safetensors") if not place.is_file())
    for file in strange:
        got = "is a link to nothing, or no file"
        found.problems.append(Problem(file, "", got, "a file of weights", "Fetch it, or remove it."))
    if not files and not named and not strange:
        found.problems += _without_weights(folder)
    here = {file for file in (*named, *files) if (folder / file).is_file()}
    for file in named if index.name == INDEX and named else files:
        if file in here:
            _add_file(found, file)
    if index.where:
        held = {entry.name: entry.file for entry in found.entries.values()}
        found.problems += against_files(index, held, here, {problem.file for problem in found.problems})
    return found


def _without_weights(folder: Path) -> Iterator[Problem]:
    pickles = [file.name for pattern in _PICKLES for file in glob(folder, pattern)]
    if pickles:
        got = f"holds weights as a pickle ({len(pickles)} such files), which runs code when it is opened: not opened"
        yield Problem(pickles[0], "", got, "safetensors", "Fetch or write the checkpoint as safetensors.")
    else:
        yield Problem(str(folder), "", "holds no weights", "safetensors files", "Fetch the checkpoint's weights.")


def _json(found: Headers, file: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        found.problems.append(Problem(file, "", f"is no JSON ({str(error)[:80]})", "JSON", COPY))
        return None


def _add_file(found: Headers, file: str) -> None:
    place = found.folder / file
    try:
        with place.open("rb") as stream:
            size = place.stat().st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_HEADER):
                got = f"says that its header has {length} bytes, and the file has {size}"
                found.problems.append(Problem(file, "", got, "a header inside the file", COPY))
                return
            header = _json(found, file, stream.read(length))
    except OSError as error:
        found.problems.append(Problem(file, "", f"cannot be read ({error.strerror})", "a readable file", COPY))
        return
    if header is None:
        return
    if not isinstance(header, dict):
        got = f"has a header of type {type(header).__name__}"
        found.problems.append(Problem(file, "", got, "an object", COPY))
        return
    header.pop("__metadata__", None)
    added = [entry for name, said in header.items() if (entry := _entry(found, file, name, said, 8 + length))]
    if len(added) == len(header):  # else holes are those that were named already
        found.problems += _bounds(file, added, 8 + length, size)
    for entry in added:
        if entry.name in found.entries:
            got = f"is in {found.entries[entry.name].file} too"
            remedy = "Remove the file that does not belong to this checkpoint."
            found.problems.append(Problem(file, entry.name, got, "each tensor in one file", remedy))
        else:
            found.entries[entry.name] = entry


def _entry(found: Headers, file: str, name: str, said: Any, start: int) -> Entry | None:
    said = said if isinstance(said, dict) else {}
    dtype, shape, offsets = said.get("dtype"), said.get("shape"), said.get("data_offsets")
    if not isinstance(dtype, str) or not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        got = f"is described as dtype {dtype!r}, shape {shape!r}, data_offsets {offsets!r}"[:200]
        expected = "a dtype's name, whole numbers, and two offsets"
        found.problems.append(Problem(file, name, got, expected, COPY))
        return None
    entry = Entry(name, file, dtype, tuple(shape), start + offsets[0], start + offsets[1])
    needed = math.prod(entry.shape) * DTYPES[dtype].itemsize if dtype in DTYPES else entry.nbytes
    if entry.nbytes != needed:
        got = f"has {entry.nbytes} bytes for {dtype} {list(entry.shape)}"
        found.problems.append(Problem(file, name, got, f"{needed} bytes", COPY))
    return entry


def _whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)


def _bounds(file: str, entries: Iterable[Entry], start: int, size: int) -> Iterator[Problem]:
    """Tensors behind the end of the file; else holes and overlaps, which the format forbids."""
    ordered = sorted(entries, key=lambda entry: (entry.begin, entry.end))
    beyond = [entry for entry in ordered if entry.end > size]
    if beyond:
        first = beyond[0]
        got, more = f"ends at byte {first.end} and the file at {size}", tuple(entry.name for entry in beyond[1:])
        yield Problem(file, first.name, got, "the whole tensor: the file is cut short", COPY, more)
        return
    place = start
    for entry in ordered:
        if entry.begin != place:
            got = f"begins at byte {entry.begin} of the file"
            yield Problem(file, entry.name, got, f"{place}, where the tensor before it ends", COPY)
            return
        place = entry.end
    if place != size:
        yield Problem(file, "", f"has {size - place} bytes behind its last tensor", "none, as the format has it", COPY)
