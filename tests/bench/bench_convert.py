"""Time `vllm-megamoe convert` beside reading and writing the same bytes, in one run, with its peak memory.

    PYTHONPATH=tests python -m bench.bench_convert [--gib 4] [--folder DIR] [--write docs/benchmarks.md]

Source files are in the page cache for both; both flush what they write to the disk. `convert` also reads again what it
wrote, which the plain copy does not. Quote the ratio, not the seconds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.bench_loading import sizes_of
from bench.loading import Sizes, write
from bench.page import put_section
from cli.command import QWEN3_30B_A3B
from safetensors import safe_open

CASES = (
    ("bf16", "a16w16"),
    ("bf16", "a8w8-int"),
    ("bf16", "a8w8-fp"),
    ("msmodelslim-w8a8-dynamic", "a8w8-int"),
    ("msmodelslim-w4a8-mxfp", "a8w4-fp"),
)
"""Format of a generated checkpoint (bench.loading), and what it becomes."""

_CHUNK = 1 << 23
TITLE = "## Converting"
SAID = """`vllm-megamoe convert` of generated experts (hidden 2048, intermediate 1024), beside reading the source and
writing as many bytes as the result has, both flushed to the disk. Speed is that time divided by convert's, which starts
a process, reads again what it has written, compares each number and works out the losses; the aim is 0.7. Memory is the
largest of all processes so far, pages of mapped files included."""


def described(folder: Path, form: str, sizes: Sizes) -> None:
    """Give generated weights the files that a model's folder has."""
    config = {
        **QWEN3_30B_A3B,
        "hidden_size": sizes.hidden,
        "moe_intermediate_size": sizes.width,
        "num_experts": sizes.experts,
        "num_hidden_layers": sizes.layers,
    }
    (folder / "config.json").write_text(json.dumps(config))
    if form.startswith("msmodelslim"):
        kind = form.removeprefix("msmodelslim-").upper().replace("-", "_")
        names = [name for file in folder.glob("*.safetensors") for name in safe_open(file, "pt").keys()]  # noqa: SIM118
        content = {"version": "1.0.0", **dict.fromkeys(names, kind)}
        (folder / "quant_model_description.json").write_text(json.dumps(content))


def copied(source: Path, bytes_out: int, target: Path) -> float:
    """Seconds for reading every file of a folder and writing as many bytes as the conversion did."""
    begin = time.perf_counter()
    for file in source.glob("*.safetensors"):
        with file.open("rb") as stream:
            while stream.read(_CHUNK):
                pass
    block = bytes(_CHUNK)
    with target.open("wb") as stream:
        for start in range(0, bytes_out, _CHUNK):
            stream.write(block[: bytes_out - start])
        stream.flush()
        os.fsync(stream.fileno())
    target.unlink()
    return time.perf_counter() - begin


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def line(folder: Path, form: str, use_case: str, gib: float) -> str:
    source = folder / form
    if not source.exists():
        sizes = sizes_of(gib)
        write(source, form, sizes)
        described(source, form, sizes)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        target = Path(place) / "own"
        command = [sys.executable, "-m", "vllm_megamoe.cli", "convert", str(source), str(target)]
        begin = time.perf_counter()
        subprocess.run([*command, "--use-case", use_case], check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - begin
        plain = copied(source, size_of(target), Path(place) / "plain")
        out = size_of(target) / 2**30
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return (
        f"| {form} to {use_case} | {size_of(source) / 2**30:.2f} | {out:.2f} | {plain:.1f} s | {plain / taken:.2f} | "
        f"{peak:.2f} GiB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the BF16 checkpoint")
    parser.add_argument("--folder", type=Path, help="where checkpoints are made and kept; a temporary one else")
    parser.add_argument("--write", type=Path, help="a page whose section is replaced")
    given = parser.parse_args()
    lines = [SAID, "", "| | GiB read | GiB written | read and write | speed of convert | most memory so far |"]
    lines.append("|---" * 6 + "|")
    with tempfile.TemporaryDirectory() as place:
        for form, use_case in CASES:
            print(f"bench: convert {form} to {use_case}", file=sys.stderr, flush=True)
            lines.append(line(given.folder or Path(place), form, use_case, given.gib))
    text = "\n".join(lines)
    print(text)
    if given.write is not None:
        put_section(given.write, TITLE, text)


if __name__ == "__main__":
    main()
