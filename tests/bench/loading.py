"""Checkpoints of experts to load, and loading beside the least that must be done: reading and copying every byte once.

Run as `python -m bench.loading FOLDER CASE` it loads once and prints one line of JSON, so that peak memory is that of a
process which does nothing else.
"""

import gc
import json
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.checkpoint.stream import ExpertStream, OwnStream, Shard
from vllm_megamoe.experts.operands import KINDS
from vllm_megamoe.experts.slots import Slots
from vllm_megamoe.profiles.use_cases import UseCase

SHARDS: dict[str, Shard] = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
OWN = "own format,"
BUFFER = 2**20
"""Bytes that are read at a time."""


@dataclass(frozen=True)
class Sizes:
    layers: int
    experts: int
    hidden: int
    width: int


@dataclass(frozen=True)
class Case:
    """One mapping: the format of the file, and what its experts become."""

    format: str
    use_case: UseCase

    @property
    def own_of(self) -> UseCase | None:
        """The use case of operands in the package's own format, None of all others."""
        return self.use_case if self.format.startswith(OWN) else None

    @property
    def name(self) -> str:
        return self.format if self.own_of else f"{self.format} as {self.use_case.value}"


CASES = {
    case.name: case
    for case in (
        Case(f"{OWN} a16w16", UseCase.A16W16),
        Case(f"{OWN} a8w8-int", UseCase.A8W8_INT),
        Case("bf16", UseCase.A16W16),
        Case("bf16", UseCase.A8W8_INT),
        Case("msmodelslim-w8a8-dynamic", UseCase.A8W8_INT),
        Case("msmodelslim-w4a8-dynamic", UseCase.A8W4_INT),
        Case("msmodelslim-w8a8-mxfp8", UseCase.A8W8_FP),
        Case("msmodelslim-w4a8-mxfp", UseCase.A8W4_FP),
    )
}


def _codes(format_name: str, rows: int, columns: int, g: torch.Generator) -> dict[str, Tensor]:
    """The tensors of one projection, with legal random numbers."""
    if format_name == "bf16":
        return {"weight": torch.randn(rows, columns, generator=g).mul_(0.02).to(torch.bfloat16)}
    byte = partial(torch.randint, generator=g)
    if format_name == "msmodelslim-w4a8-dynamic":
        weight = byte(-128, 128, (rows // 2, columns), dtype=torch.int8)
    elif format_name == "msmodelslim-w8a8-dynamic":
        weight = byte(-127, 128, (rows, columns), dtype=torch.int8)
    elif format_name == "msmodelslim-w8a8-mxfp8":
        weight = byte(0, 0x7E, (rows, columns), dtype=torch.uint8).view(torch.float8_e4m3fn)
    else:
        weight = byte(0, 256, (rows, columns // 2), dtype=torch.uint8)
    if "mx" in format_name:
        return {"weight": weight, "weight_scale": byte(110, 130, (rows, columns // 32), dtype=torch.uint8)}
    scale = torch.rand(rows, 1, generator=g) / 64 + 1e-3
    return {"weight": weight, "weight_scale": scale, "weight_offset": torch.zeros(rows, 1)}


def _expert(format_name: str, shapes: Mapping[str, tuple[int, int]], g: torch.Generator) -> dict[str, Tensor]:
    return {
        f"{name}.{part}": tensor
        for name, shape in shapes.items()
        for part, tensor in _codes(format_name, *shape, g).items()
    }


def write(folder: Path, format_name: str, sizes: Sizes) -> None:
    """A file for each layer, with names as Qwen3-MoE has them, and the sizes beside them."""
    folder.mkdir(parents=True)
    (folder / "sizes.json").write_text(json.dumps(vars(sizes)))
    g = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (sizes.width, sizes.hidden), "up_proj": (sizes.width, sizes.hidden)}
    shapes["down_proj"] = (sizes.hidden, sizes.width)
    own = next(
        (_own_layer(case.own_of, sizes) for case in CASES.values() if case.format == format_name and case.own_of), None
    )
    for layer in range(sizes.layers):
        tensors = {
            f"model.layers.{layer}.mlp.experts.{e}.{name}": tensor
            for e in range(sizes.experts)
            for name, tensor in (_own_expert(own, g) if own else _expert(format_name, shapes, g)).items()
        }
        save_file(tensors, folder / f"model-{layer:05d}.safetensors")


def tensors_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """As vLLM's default loader gives them: views of mapped files, file after file."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, it is no mapping
                yield name, file.get_tensor(name)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def read_once(folder: Path) -> None:
    """Read every byte once into memory that stays in the processor's cache."""
    buffer = torch.empty(BUFFER, dtype=torch.uint8)
    for _, tensor in tensors_of(folder):
        held = _bytes(tensor)
        for start in range(0, len(held), BUFFER):
            piece = held[start : start + BUFFER]
            buffer[: len(piece)].copy_(piece)


def copy_once(folder: Path) -> list[Tensor]:
    """Read every byte once and copy it into memory of its own, as much as the files have, new and kept to the end."""
    kept: list[Tensor] = []
    for path in sorted(folder.glob("*.safetensors")):
        # Not from the C library, which might hand out memory that this process has touched before.
        memory = mmap.mmap(-1, path.stat().st_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        place = torch.frombuffer(memory, dtype=torch.uint8)
        kept.append(place)
        start = 0
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, it is no mapping
                piece = _bytes(file.get_tensor(name))
                place[start : start + piece.numel()].copy_(piece)
                start += piece.numel()
    return kept


def load(folder: Path, case: Case) -> list[Slots]:
    """Every layer's experts into operands."""
    sizes = Sizes(**json.loads((folder / "sizes.json").read_text()))
    slots = [Slots(case.use_case, sizes.experts, dtype=torch.bfloat16) for _ in range(sizes.layers)]
    streams = [_stream(f"model.layers.{i}.mlp.experts", case, sizes, own) for i, own in enumerate(slots)]
    for name, tensor in tensors_of(folder):
        _, _, layer, _, _, expert, projection, part = name.split(".")
        streams[int(layer)].take(SHARDS[projection], part, int(expert), tensor)
    for stream in streams:
        stream.settle()
    return slots


def _stream(name: str, case: Case, sizes: Sizes, slots: Slots) -> ExpertStream:
    projections = {shard: projection for projection, shard in SHARDS.items()}

    def name_of(expert: int, shard: Shard) -> str:
        return f"{name}.{expert}.{projections[shard]}"

    shape = sizes.hidden, sizes.width, range(sizes.experts), name_of
    if case.own_of:
        own = _own_layer(case.use_case, sizes)
        expected = sizes.hidden, sizes.width

        def put(slot: int, tensors: Mapping[str, Tensor]) -> None:
            slots.put_operands(slot, own.operands_of(tensors, name_of(slot, "w1")), expected)

        return OwnStream(name, own, *shape, put)
    stream = ExpertStream(name, stored_of(case.format), *shape, slots.put)
    # What the server reads in the files' headers.
    parts = frozenset(_codes(case.format, 64, 64, torch.Generator()))
    stream.expect(dict.fromkeys(SHARDS, parts))
    return stream


def _own_layer(use_case: UseCase, sizes: Sizes) -> OwnLayer:
    return OwnLayer(use_case, KINDS[use_case][0], sizes.hidden, sizes.width)


def _own_expert(own: OwnLayer, g: torch.Generator) -> dict[str, Tensor]:
    """Operands of random bytes, which loading does not look at; scales as a conversion writes them do not differ."""
    return {
        ".".join(PARTS[field]): torch.randint(0, 256, (like.nbytes,), generator=g, dtype=torch.uint8)
        .view(like.dtype)
        .view(like.shape)
        for field, like in own.tensors.items()
    }


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


class Peak:
    """Watches anonymous memory from a thread, every millisecond."""

    def __enter__(self) -> "Peak":
        gc.collect()
        self.before = self.peak = anonymous()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(1e-3):
            self.peak = max(self.peak, anonymous())

    def __exit__(self, *_: Any) -> None:
        self.peak = max(self.peak, anonymous())
        self._over.set()
        self._thread.join()


def _warm_up(case: Case) -> None:
    """Every operation once, so that what libraries allocate for themselves is not counted."""
    sizes = Sizes(layers=1, experts=1, hidden=128, width=128)
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "one", case.format, sizes)
        load(Path(place) / "one", case)


def _timed(name: str, work: Callable[[], Any]) -> dict[str, float]:
    """Seconds by the wall and of all cores; what the work gives is dropped afterwards."""
    wall, cores = time.perf_counter(), time.process_time()
    kept = work()
    found = {f"{name}_s": time.perf_counter() - wall, f"{name}_cpu_s": time.process_time() - cores}
    del kept
    return found


def measure(folder: Path, case: Case) -> dict[str, float]:
    """Seconds of reading, of the copy and of loading, and bytes above the start: at the peak, of the operands, a layer.

    Reading comes first, so that the files are in the page cache for all. Memory is watched in a load of its own:
    watching takes time. The copy is the faster one of two, before and after loading.
    """
    _warm_up(case)
    read_once(folder)
    times = _timed("read", partial(read_once, folder))
    with Peak() as memory:
        slots = load(folder, case)
    layers = [own.operands().nbytes for own in slots]
    del slots
    first = _timed("copy", partial(copy_once, folder))
    times |= _timed("load", partial(load, folder, case))
    second = _timed("copy", partial(copy_once, folder))
    times |= {name: min(seconds, second[name]) for name, seconds in first.items()}
    source = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return times | {
        "peak": memory.peak - memory.before,
        "final": sum(layers),
        "layer": max(layers),
        "source": source,
    }


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    print(json.dumps(measure(Path(sys.argv[1]), CASES[sys.argv[2]])), flush=True)
