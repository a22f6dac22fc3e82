"""Time what two ranks on one host exchange for a MoE layer, beside vLLM's own collectives on the same rows.

    PYTHONPATH=tests python -m bench.bench_exchange [--rows 1 16 256] [--repeats 30] [--write docs/benchmarks.md]

The operator on two ranks, and on one with half of the rows, so that it computes as many; experts are narrow and cost
little. The difference is what the exchange adds. vLLM's layers of the same rows end in an all-reduce under tensor
parallelism (its shared memory), and stand between an all-gather and a reduce-scatter under data parallelism (gloo).
Rows are those of both ranks; time is the wall's.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.page import put_section

from vllm_megamoe.testing.ranks import World

TITLE = "## Exchange between two ranks"
HIDDEN, WIDTH, EXPERTS, TOPK = 2048, 32, 32, 8
ROWS, REPEATS = [1, 16, 256], 30
LIMIT_S = 240.0

Found = dict[str, list[float]]
"""By name: milliseconds for each number of rows."""


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def measure(rows_list: list[int], repeats: int) -> Found:
    """On one rank of two; all ranks measure the same things in the same order."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    group = dist.new_group([0, 1])
    found: Found = {}
    for rows in rows_list:
        own = -(-rows // 2)
        x = torch.randn(own, HIDDEN).bfloat16()
        runs = {
            "mega_moe, two ranks": _layer(group, 2, x, own),
            "mega_moe, one rank, half of the rows": _layer(None, 1, x, own),
            **_collectives(group, rows, own),
        }
        for name, run in runs.items():
            found.setdefault(name, []).append(_median_ms(run, repeats))
    return found


def _layer(group: Any, ranks: int, x: Any, rows: int) -> Callable[[], object]:
    import torch

    from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, transform_weights_for_mega_moe
    from vllm_megamoe.ops.api import bind

    own = EXPERTS // ranks
    w13, w2 = torch.randn(own, 2 * WIDTH, HIDDEN).bfloat16(), torch.randn(own, HIDDEN, WIDTH).bfloat16()
    operands = transform_weights_for_mega_moe(w13, w2, "a16w16")
    buffer = get_symm_buffer_for_mega_moe(group, EXPERTS, rows, TOPK, HIDDEN, WIDTH)
    operator = bind(buffer, **operands.arguments())
    ids = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(len(x))]).int()
    weights = torch.rand(len(x), TOPK)
    return lambda: operator(x, ids, weights, None)


def _collectives(group: Any, rows: int, own: int) -> dict[str, Callable[[], object]]:
    """vLLM's, made once a run: its shared memory has a name."""
    import torch
    from torch import distributed as dist
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    if not _vllm:
        cpu = torch.device("cpu")
        _vllm.append(CpuCommunicator(group, device=cpu, device_group=group, unique_name="tp:0"))
    tensor = _vllm[0]
    whole, mine = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(own, HIDDEN).bfloat16()
    both = torch.empty(2 * own, HIDDEN, dtype=torch.bfloat16)

    def between() -> None:
        dist.all_gather_into_tensor(both, mine, group=group)
        dist.reduce_scatter_tensor(mine, both, group=group)

    return {"vLLM, all-reduce (TP)": lambda: tensor.all_reduce(whole), "vLLM, gather and scatter (DP)": between}


_vllm: list[Any] = []


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    from torch import distributed as dist

    seen = []
    for count in range(repeats + 3):
        dist.barrier()
        start = time.perf_counter()
        run()
        if count >= 3:
            seen.append((time.perf_counter() - start) * 1e3)
    return statistics.median(seen)


def section(found: Found, rows_list: list[int]) -> str:
    """The page's section."""
    both, alone = found["mega_moe, two ranks"], found["mega_moe, one rank, half of the rows"]
    added = [two - one for two, one in zip(both, alone, strict=True)]
    lines = [
        f"Two ranks on this host, one thread each; hidden {HIDDEN}, top-{TOPK}, experts of width {WIDTH}, which cost",
        "little. Rows of both ranks together; medians, milliseconds.",
        "",
        "| | " + " | ".join(f"{rows} rows" for rows in rows_list) + " |",
        "|---" * (len(rows_list) + 1) + "|",
    ]
    for name, times in (found | {"mega_moe, added by the exchange": added}).items():
        lines.append(f"| {name} | " + " | ".join(f"{ms:.2f}" for ms in times) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--write", type=Path, help="a page whose section is replaced")
    given = parser.parse_args()
    tell("exchange between two ranks")
    world = World(2)
    try:
        found = world.run(measure, [(given.rows, given.repeats)] * 2, LIMIT_S)[0]
    finally:
        world.stop()
    text = section(found, given.rows)
    print(text)
    if given.write is not None:
        put_section(given.write, TITLE, text)


if __name__ == "__main__":
    main()
