"""Time one MoE layer through the operator's twin beside vLLM's own CPU MoE, in one run.

    PYTHONPATH=tests python -m bench.bench_operator [--write docs/benchmarks.md] [--rows 1 8 64 1024] [--repeats 9]
        [--without-kernels] [--busy]

Every figure of a row is measured in turn, round after round, and the median is taken; quote the ratios, not the times.
Beside each stands its bound: the time of reading the weights of the touched experts once, at the machine's bandwidth.
It takes some minutes and tells on the error output how far it is. On a machine that others use, --busy counts the CPU
time of one thread in place of the time that passes.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from bench.layers import HIDDEN, NUM_EXPERTS, TOPK, WIDTH, Layer, expert_bytes, operator_layers, vllm_layer
from bench.page import put_first

from vllm_megamoe.environment import KERNELS
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.kernels import build

Run = Callable[[], object]

ROWS = [1, 2, 4, 8, 16, 64, 256, 1024]
REPEATS = 9
BASE = "vLLM CPU MoE, BF16"
_READ_BYTES = 1 << 28
"""Read to find the bandwidth: more than caches hold."""


def rounds(rows: int, repeats: int) -> int:
    """How often a column is measured; large steps take longest and vary least."""
    return repeats if rows <= 64 else max(1, repeats // 4)


def tell(text: str) -> None:
    """Say at once how far the run is."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def medians(runs: dict[str, Run], repeats: int, what: str) -> dict[str, float]:
    """Milliseconds by name, with one thread of its CPU time; the first round warms up and does not count."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for count in range(repeats + 1):
        tell(f"{what}, " + (f"round {count} of {repeats}" if count else "warm-up"))
        for name, run in runs.items():
            start = clock()
            run()
            if count:
                seen[name].append((clock() - start) * 1e3)
    return {name: statistics.median(times) for name, times in seen.items()}


def matmuls(rows: int) -> dict[str, Run]:
    """The machine's own products of [rows * K, H] with one expert's first weight."""
    n = rows * TOPK
    a, b = torch.randn(n, HIDDEN).to(torch.bfloat16), torch.randn(HIDDEN, 2 * WIDTH).to(torch.bfloat16)
    q = torch.randint(-127, 128, (n, HIDDEN), dtype=torch.int8)
    w = torch.randint(-127, 128, (HIDDEN, 2 * WIDTH), dtype=torch.int8)
    f, g = a.float(), b.float()
    return {"bf16 matmul": lambda: a @ b, "int8 matmul": lambda: torch._int_mm(q, w), "fp32 matmul": lambda: f @ g}


def bandwidth_ms_per_byte() -> float:
    """Milliseconds for a byte, where torch adds up float32 numbers on all threads."""
    numbers = torch.ones(_READ_BYTES // 4)
    return medians({"": numbers.sum}, 5, "bandwidth")[""] / _READ_BYTES


def table(rows_list: list[int], repeats: int) -> str:
    """Markdown: a line per use case, a column per row count, each as a ratio to vLLM's MoE of the same run."""
    tell("making the layers: vLLM's own, and the operator in six use cases")
    layers: dict[str, Layer] = {BASE: vllm_layer(), **operator_layers()}
    columns: dict[int, dict[str, float]] = {}
    bounds: dict[int, dict[str, float]] = {}
    for rows in rows_list:
        inputs = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, HIDDEN, generator=inputs).to(torch.bfloat16)
        ids = torch.stack([torch.randperm(NUM_EXPERTS, generator=inputs)[:TOPK] for _ in range(rows)]).to(torch.int32)
        weights = torch.rand(rows, TOPK, generator=inputs)
        runs: dict[str, Run] = {name: partial(layer, x, ids, weights) for name, layer in layers.items()}
        # One machine product of 1024 * 8 rows takes minutes where the CPU has no such instruction.
        small = matmuls(rows) if rows <= 8 else {}
        columns[rows] = medians(runs | small, rounds(rows, repeats), f"{rows} rows")
        per_byte = bandwidth_ms_per_byte()
        bounds[rows] = {name: len(ids.unique()) * expert_bytes(name) * per_byte for name in layers}
    names = list(columns[rows_list[0]])
    lines = ["| | " + " | ".join(f"{rows} rows" for rows in rows_list) + " |", "|---" * (len(rows_list) + 1) + "|"]
    for name in names:
        cells = [_cell(columns[rows], bounds[rows], name) for rows in rows_list]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(column: dict[str, float], bounds: dict[str, float], name: str) -> str:
    if name not in column:
        return "-"
    found = f"{column[name]:.1f} ms" if name == BASE else f"{column[name] / column[BASE]:.2f}"
    return f"{found} ({bounds[name] / column[BASE]:.2f})" if name in bounds else found


def introduction(rows_list: list[int], repeats: int) -> str:
    """What is measured, and how."""
    times = ", ".join(f"{rounds(rows, repeats)} of {rows} rows" for rows in rows_list)
    return f"""# Benchmarks

One MoE layer of hidden {HIDDEN}, intermediate {WIDTH}, {NUM_EXPERTS} experts, top-{TOPK}, on one rank.

- First line: milliseconds of vLLM's own CPU MoE.
- All other lines: time divided by that of the first line, measured in turn in the same run.
- In brackets: the time of reading the weights of the touched experts once, divided by the same; the bandwidth is that
  of a float32 sum in the same run.
- Every figure is the median of several rounds: {times}.
- Last lines: one plain matrix product of the machine, [rows x {TOPK}, {HIDDEN}] with [{HIDDEN}, {2 * WIDTH}].

These figures say nothing about an NPU.
"""


def report(rows_list: list[int], repeats: int) -> str:
    """The page: what was measured, where, and the table."""
    return f"""{introduction(rows_list, repeats)}
{platform.machine()}, {threads()}, torch {torch.__version__}, kernels for {kernels()}.
`make bench` writes this page.

{table(rows_list, repeats)}
"""


def kernels() -> str:
    """The processor that the twin's kernels are made for, or why there are none."""
    if Settings().kernels == "off":
        return "nothing, they are off"
    return build.why_not() or build.processor()


def threads() -> str:
    """How many, and what was counted."""
    count = torch.get_num_threads()
    return "1 thread, its CPU time" if count == 1 else f"{count} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--write", type=Path, help="also write the page to this file")
    parser.add_argument("--without-kernels", action="store_true", help="leave all products to torch")
    parser.add_argument("--busy", action="store_true", help="one thread and its CPU time, where others use the machine")
    arguments = parser.parse_args()
    if arguments.busy:
        torch.set_num_threads(1)
    if arguments.without_kernels:
        os.environ[KERNELS.name] = "off"
    page = report(arguments.rows, arguments.repeats)
    print(page)
    if arguments.write:
        put_first(arguments.write, page)


if __name__ == "__main__":
    main()
