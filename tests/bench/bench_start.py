"""Time `vllm serve` from its start to a first token, with `--quantization megamoe` beside without, and two imports.

    PYTHONPATH=tests python -m bench.bench_start [--rounds 2] [--eager] [--folder DIR] [--write docs/benchmarks.md]

Cold: no compiled graphs, no kernels of the twin are kept. Warm: those of the cold start are; the median of `--rounds`.
Both ways take turns on one checkpoint, the demo's (2 layers), in the page cache. Beside seconds stands the CPU time of
the server and all its workers, which counts where others use the machine. Quote the ratios.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.page import put_section

from vllm_megamoe.environment import CACHE
from vllm_megamoe.testing.server import Server, compiler_environment

TITLE = "## Start-up"
FLAG = ("--quantization", "megamoe")
IMPORTS = ("import torch", "import torch; import vllm_megamoe.ops")
_PROMPT = [72, 101, 108, 108, 111]
_IMPORT_ROUNDS = 5

Took = tuple[float, float]
"""Seconds, and CPU seconds."""


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(checkpoint: Path, options: tuple[str, ...], kept: Path) -> Took:
    """To the first token; the CPU time has the server's end in it.

    Args:
        kept: where this way keeps what it compiles.
    """
    ours = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    places = {"VLLM_CACHE_ROOT": "vllm", "TORCHINDUCTOR_CACHE_DIR": "inductor", CACHE.name: "megamoe"}
    environment = ours | compiler_environment() | os.environ | {key: str(kept / name) for key, name in places.items()}
    kept.mkdir(parents=True, exist_ok=True)
    cpu, begun = _cpu_of_children(), time.perf_counter()
    with Server(checkpoint, options, kept / "server.log").running(environment) as client:
        client.greedy_tokens(_PROMPT, 1)
        took = time.perf_counter() - begun
    return took, _cpu_of_children() - cpu


def starts(folder: Path, rounds: int, eager: bool) -> dict[str, list[Took]]:
    """Median of without and with the flag, by kind of start."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        command = [sys.executable, "-m", "vllm_megamoe.demo.checkpoint", str(checkpoint)]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL)
    common = ("--max-model-len", "256", *(("--enforce-eager",) if eager else ()))
    ways = {"without": common, "with": (*common, *FLAG)}
    seen: dict[str, dict[str, list[Took]]] = {kind: {way: [] for way in ways} for kind in ("cold", "warm")}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(rounds + 1):
            kind = "warm" if turn else "cold"
            for way, options in ways.items():
                tell(f"start, {kind}, {way} the flag")
                seen[kind][way].append(start(checkpoint, options, Path(name) / way))
    return {kind: [_median(taken) for taken in found.values()] for kind, found in seen.items()}


def _median(taken: list[Took]) -> Took:
    return statistics.median(one[0] for one in taken), statistics.median(one[1] for one in taken)


def imports() -> Took:
    """CPU seconds of `import torch`, and what `vllm_megamoe.ops` adds."""
    seen: list[list[float]] = [[], []]
    for _ in range(_IMPORT_ROUNDS):
        for place, line in enumerate(IMPORTS):
            before = _cpu_of_children()
            subprocess.run([sys.executable, "-c", line], check=True)
            seen[place].append(_cpu_of_children() - before)
    alone, both = (statistics.median(times) for times in seen)
    return alone, both - alone


def section(folder: Path, rounds: int, eager: bool) -> str:
    """The page's section."""
    found = starts(folder, rounds, eager)
    mode = "`--enforce-eager`" if eager else "compiled"
    lines = [
        f"`vllm serve` of a model of 2 layers, {mode}, to its first token. In brackets CPU time, of all its processes.",
        "",
        "| | without the flag | with `--quantization megamoe` | ratio |",
        "|---|---|---|---|",
    ]
    for kind, (without, flagged) in found.items():
        ratios = [one / other for one, other in zip(flagged, without, strict=True)]
        cells = [f"{one[0]:.1f} s ({one[1]:.1f} s)" for one in (without, flagged)]
        lines.append(f"| {kind} | {cells[0]} | {cells[1]} | {ratios[0]:.2f} ({ratios[1]:.2f}) |")
    alone, added = imports()
    lines += ["", f"`import torch` takes {alone:.2f} s of CPU time, `import vllm_megamoe.ops` {added:.2f} s more."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="warm starts of each way")
    parser.add_argument("--eager", action="store_true", help="without vLLM's compilation")
    parser.add_argument("--folder", type=Path, help="where the checkpoint is made and kept; a temporary one else")
    parser.add_argument("--write", type=Path, help="a page whose section on start-up is replaced")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        text = section(given.folder or Path(place), given.rounds, given.eager)
    print(text)
    if given.write is not None:
        put_section(given.write, TITLE, text)


if __name__ == "__main__":
    main()
