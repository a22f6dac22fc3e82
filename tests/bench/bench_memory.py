"""Measure the memory of a running server's processes after 100 and after 10,000 steps, and print both.

    PYTHONPATH=tests python -m bench.bench_memory [--steps 10000] [--data-parallel]

It starts `vllm serve` with the demo's model on two ranks and asks for one token after the other, so that each is a step
of the engine. What counts is the private memory of each worker (Private_Clean + Private_Dirty of smaps_rollup): pages
that are shared with other processes and the file cache stay out of it.
"""

import argparse
import tempfile
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--data-parallel", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_checkpoint(Path(folder) / "model"))
        options = DP2 if asked.data_parallel else TP2
        with healthy(model, options, Path(folder) / "log.txt") as life:
            run_steps(life.client, EARLY)
            workers = life.workers()
            early = {pid: private_mib(pid) for pid in workers}
            run_steps(life.client, asked.steps - EARLY)
            for rank, pid in enumerate(workers):
                late = private_mib(pid)
                print(
                    f"rank {rank}: {early[pid]:.1f} MiB after {EARLY} steps, {late:.1f} MiB after {asked.steps} "
                    f"({late - early[pid]:+.1f})"
                )


if __name__ == "__main__":
    main()
