"""A safetensors file written tensor by tensor: never half a file under its name, and read again before it gets it."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

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


def write_file(place: Path, declared: Sequence[Declared], data: Iterable[Any]) -> str:
    """Write a file, read it again, and only then give it its name.

    Args:
        place: of the file; one that is there is replaced.
        declared: its tensors, in order.
        data: bytes-like pieces that are the data of all of them, one after the other.

    Returns:
        The digest of the whole file.

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
    return write_atomically(place, _whole(text, data), 8 + len(text) + end)


def _whole(header: bytes, data: Iterable[Any]) -> Iterator[Any]:
    yield len(header).to_bytes(8, "little")
    yield header
    yield from data


def write_atomically(place: Path, pieces: Iterable[Any], size: int | None = None) -> str:
    """Write a file under another name, flush it to the disk, read it again, rename it; the digest of its bytes.

    Raises:
        CheckpointError: as `write_file`.
    """
    part, digest = place.with_name(f".{place.name}.part"), hashlib.blake2b()
    try:
        with part.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
                digest.update(piece)
            stream.flush()
            os.fsync(stream.fileno())
        if size is not None and part.stat().st_size != size:
            raise CheckpointError(
                f"{place.name}: {part.stat().st_size} bytes were written; expected {size}. Try again."
            )
        if digest_of(part) != digest.hexdigest():
            raise CheckpointError(
                f"{place.name}: what was read again is not what was written; expected the same bytes. Check the disk."
            )
        part.replace(place)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be written ({error.strerror}); expected room and rights.") from error
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()


Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items; while one is used, the next is made in another thread, which two cores are for."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, items, end)
            yield cast(Item, item)


def digest_of(file: Path) -> str:
    """Of a file's bytes."""
    digest = hashlib.blake2b()
    for piece in pieces_of(file):
        digest.update(piece)
    return digest.hexdigest()


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
