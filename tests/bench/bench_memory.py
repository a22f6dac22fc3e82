"""Measure the memory of a running server's processes after 100 and after 10,000 steps, and print both.

    PYTHONPATH=tests python -m bench.bench_memory [--steps 10000] [--write docs/benchmarks.md]

For tensor and for data parallelism it starts `vllm serve` with the demo's model on two ranks and asks for one token
after the other, so that each is a step of the engine. What counts is the private memory of each worker (Private_Clean +
Private_Dirty of smaps_rollup): pages that are shared with other processes and the file cache stay out of it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bench.page import put_section
from engine.ends import DP2, TP2, healthy

from vllm_megamoe.demo.checkpoint import make_checkpoint
from vllm_megamoe.testing.server import Client

EARLY = 100
ROUND = 200
"""Tokens of a request: each is a step."""


def private_mib(pid: int) -> float:
    """Private memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024


def run_steps(client: Client, steps: int) -> None:
    """That many steps of the engine: a prompt of three tokens, then tokens one by one."""
    while steps > 0:
        client.greedy_tokens([5, 6, 7], min(steps, ROUND))
        steps -= ROUND


TITLE = "## Memory of a long run"
ABOUT = """Private memory of each worker of a served model (the demo's, two ranks, eager), one token a step. A call
allocates nothing that grows (tests/layer/test_allocations.py)."""


def rows(model: str, layout: str, options: tuple[str, ...], steps: int, log: Path) -> list[str]:
    """A line for each worker of one server."""
    print(f"bench: memory, {layout}", file=sys.stderr, flush=True)
    with healthy(model, options, log) as life:
        run_steps(life.client, EARLY)
        workers = life.workers()
        early = {pid: private_mib(pid) for pid in workers}
        run_steps(life.client, steps - EARLY)
        late = {pid: private_mib(pid) for pid in workers}
    return [
        f"| {layout}, rank {rank} | {early[pid]:.1f} MiB | {late[pid]:.1f} MiB | {late[pid] - early[pid]:+.1f} MiB |"
        for rank, pid in enumerate(workers)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--write", type=Path, help="a page whose section on memory is replaced")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, log = str(make_checkpoint(Path(folder) / "model")), Path(folder) / "log.txt"
        lines = [
            line
            for layout, options in (("tensor parallel", TP2), ("data parallel", DP2))
            for line in rows(model, layout, options, asked.steps, log)
        ]
    head = f"| | after {EARLY} steps | after {asked.steps} | difference |"
    text = "\n".join([ABOUT, "", head, "|---" * 4 + "|", *lines])
    print(text)
    if asked.write is not None:
        put_section(asked.write, TITLE, text)


if __name__ == "__main__":
    main()
