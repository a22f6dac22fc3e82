"""A safetensors file written tensor by tensor: never half a file under its name, and read again before it gets it."""

import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.headers import DTYPES
from vllm_megamoe.errors import CheckpointError

WORDS = {dtype: word for word, dtype in DTYPES.items()}
_CHUNK = 1 << 23
_ALIGN = 8
"""The format asks for a header of a multiple of this."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor that will be written: its name, the format's word for its dtype, its shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Declared":
        """Like a tensor."""
        return cls(name, WORDS[tensor.dtype], tuple(tensor.shape), tensor.nbytes)


def data_of(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_file(place: Path, declared: Sequence[Declared], data: Iterable[Any]) -> None:
    """Write a file, read it again, and only then give it its name.

    Args:
        place: of the file; one that is there is replaced.
        declared: its tensors, in order.
        data: bytes-like pieces that are the data of all of them, one after the other.

    Raises:
        CheckpointError: it cannot be written, the data is of another length than declared, or what was read again is
            not what was written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in declared:
        header[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [end, end + one.nbytes]}
        end += one.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    write_atomically(place, _whole(text, data), 8 + len(text) + end)


def _whole(header: bytes, data: Iterable[Any]) -> Iterator[Any]:
    yield len(header).to_bytes(8, "little")
    yield header
    yield from data


def write_atomically(place: Path, pieces: Iterable[Any], size: int | None = None) -> None:
    """Write a file under another name, flush it to the disk, read it again, rename it.

    Raises:
        CheckpointError: as `write_file`.
    """
    part, checksum = place.with_name(f".{place.name}.part"), 0
    try:
        with part.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
                checksum = zlib.crc32(piece, checksum)
            stream.flush()
            os.fsync(stream.fileno())
        if size is not None and part.stat().st_size != size:
            raise CheckpointError(
                f"{place.name}: {part.stat().st_size} bytes were written; expected {size}. Try again."
            )
        if checksum_of(part) != checksum:
            raise CheckpointError(
                f"{place.name}: what was read again is not what was written; expected the same bytes. Check the disk."
            )
        part.replace(place)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be written ({error.strerror}); expected room and rights.") from error
    finally:
        part.unlink(missing_ok=True)


Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(make: Callable[[Item], Made], items: Iterable[Item], workers: int) -> Iterator[Made]:
    """make(item) of each item, in order; at most `workers` are made or wait at a time, each in a thread of its own."""
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[Made]] = deque()
        try:
            for item in items:
                if len(waiting) == workers:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(make, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def checksum_of(file: Path) -> int:
    """CRC-32 of a file's bytes."""
    found = 0
    for piece in pieces_of(file):
        found = zlib.crc32(piece, found)
    return found


def pieces_of(file: Path, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """A file's bytes from one place to another, in pieces."""
    with file.open("rb") as stream:
        stream.seek(begin)
        left = file.stat().st_size - begin if end is None else end - begin
        while left > 0:
            piece = stream.read(min(_CHUNK, left))
            if not piece:
                raise CheckpointError(f"{file.name}: ends before byte {end}; expected the whole file. Copy it anew.")
            left -= len(piece)
            yield piece
