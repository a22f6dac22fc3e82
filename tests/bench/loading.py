"""Checkpoints of experts to load, and loading beside the least that must be done: reading and copying every byte once.

Run as `python -m bench.loading FOLDER CASE` it loads once and prints one line of JSON, so that peak memory is that of a
process which does nothing else.
"""

import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.checkpoint.stream import ExpertStream, Shard
from vllm_megamoe.experts.slots import Slots
from vllm_megamoe.profiles.use_cases import UseCase

SHARDS: dict[str, Shard] = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
BUFFER = 64 * 2**20
"""Bytes that the copy goes through: what is read once is dropped."""


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
    def name(self) -> str:
        return f"{self.format} as {self.use_case.value}"


CASES = {
    case.name: case
    for case in (
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


def write(folder: Path, format_name: str, sizes: Sizes) -> None:
    """A file for each layer, with names as Qwen3-MoE has them, and the sizes beside them."""
    folder.mkdir(parents=True)
    (folder / "sizes.json").write_text(json.dumps(vars(sizes)))
    g = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (sizes.width, sizes.hidden), "up_proj": (sizes.width, sizes.hidden)}
    shapes["down_proj"] = (sizes.hidden, sizes.width)
    for layer in range(sizes.layers):
        tensors = {
            f"model.layers.{layer}.mlp.experts.{e}.{name}.{part}": tensor
            for e in range(sizes.experts)
            for name, shape in shapes.items()
            for part, tensor in _codes(format_name, *shape, g).items()
        }
        save_file(tensors, folder / f"model-{layer:05d}.safetensors")


def tensors_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """As vLLM's default loader gives them: views of mapped files, file after file."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, it is no mapping
                yield name, file.get_tensor(name)


def copy_once(folder: Path) -> None:
    """Read and copy every byte once."""
    buffer = torch.empty(BUFFER, dtype=torch.uint8)
    for _, tensor in tensors_of(folder):
        flat = tensor.contiguous().view(-1).view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8)
        for start in range(0, flat.numel(), BUFFER):
            piece = flat[start : start + BUFFER]
            buffer[: piece.numel()].copy_(piece)


def load(folder: Path, case: Case) -> list[Slots]:
    """Every layer's experts into operands."""
    sizes = Sizes(**json.loads((folder / "sizes.json").read_text()))
    slots = [Slots(case.use_case, sizes.experts, dtype=torch.bfloat16) for _ in range(sizes.layers)]
    streams = [_stream(f"model.layers.{i}.mlp.experts", case, sizes, own.put) for i, own in enumerate(slots)]
    for name, tensor in tensors_of(folder):
        _, _, layer, _, _, expert, projection, part = name.split(".")
        streams[int(layer)].take(SHARDS[projection], part, int(expert), tensor)
    for stream in streams:
        stream.settle()
    return slots


def _stream(name: str, case: Case, sizes: Sizes, finish: Callable[..., None]) -> ExpertStream:
    projections = {shard: projection for projection, shard in SHARDS.items()}
    return ExpertStream(
        name,
        stored_of(case.format),
        sizes.hidden,
        sizes.width,
        range(sizes.experts),
        lambda expert, shard: f"{name}.{expert}.{projections[shard]}",
        finish,
    )


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


def measure(folder: Path, case: Case) -> dict[str, float]:
    """Seconds of the copy and of loading, and bytes above the start: at the peak, of the operands, of a layer."""
    _warm_up(case)
    started = time.perf_counter()
    copy_once(folder)
    copied = time.perf_counter()
    with Peak() as memory:
        slots = load(folder, case)
    loaded = time.perf_counter()
    layers = [own.operands().nbytes for own in slots]
    source = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {
        "copy_s": copied - started,
        "load_s": loaded - copied,
        "peak": memory.peak - memory.before,
        "final": sum(layers),
        "layer": max(layers),
        "source": source,
    }


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    print(json.dumps(measure(Path(sys.argv[1]), CASES[sys.argv[2]])), flush=True)
