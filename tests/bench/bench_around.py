"""Count what stands around the operator in a MoE layer's call, for our two lanes and the paths that they replace.

    PYTHONPATH=tests python -m bench.bench_around [--contract .venv-contract/bin/python] [--write docs/benchmarks.md]

Eager, after warm-up, an operator that returns at once. vLLM's CPU build is that of this environment; vllm-ascend's
paths run in the contract suite's (`make contract`), over the simulated NPU, and are left out where that is missing.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.around_calls import ANSWER
from bench.page import put_section

TITLE = "## Around the operator"
CONTRACT = Path(".venv-contract/bin/python")
PRODUCTS = ("a3@9.2", "950@9.2")
NAMES = {"theirs": "vllm-ascend, FUSED_MC2 with MegaMoe", "ours": "mega_moe, Ascend lane"}

Found = dict[str, dict[str, Any]]
"""By path: what `bench.around_calls.around` gave."""


def tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def on_cpu() -> Found:
    tell("around the operator, vLLM's CPU build")
    return dict(json.loads(_answer([sys.executable, "-m", "bench.around_cpu"])))


def on_ascend(python: Path) -> Found:
    """The last rank's answer: its rows end in one that vllm-ascend has filled up with."""
    found: Found = {}
    for product in PRODUCTS:
        tell(f"around the operator, vllm-ascend on {product}")
        answer = json.loads(_answer([str(python), "-m", "bench.around_ascend", product]))
        for form, paths in answer.items():
            found |= {f"{NAMES[path]}, {product}, {form}": paths[path] for path in NAMES}
    return found


def _answer(command: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path[:1], os.getcwd(), "tests"]))}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(ANSWER))
    return line.removeprefix(ANSWER)


def section(found: Found) -> str:
    """The page's section."""
    lines = [
        "One call of a MoE layer's method, eager, after warm-up, with an operator that returns at once: operations",
        "that torch dispatches beside it, and CPU time of the host. In brackets the first layer of a step. The rows of",
        "the Ascend paths end in one that vllm-ascend has filled up with.",
        "",
        "| | operations | host |",
        "|---|---|---|",
    ]
    for path, one in found.items():
        lines.append(f"| {path} | {len(one['later'])} ({len(one['first'])}) | {one['microseconds']:.1f} us |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contract", type=Path, default=CONTRACT, help="Python of the environment with vllm-ascend")
    parser.add_argument("--write", type=Path, help="a page whose section is replaced")
    given = parser.parse_args()
    found = on_cpu()
    missing = "" if given.contract.exists() else f"\n\nvllm-ascend was not measured: {given.contract} is not there."
    if not missing:
        found |= on_ascend(given.contract)
    text = section(found) + missing
    print(text)
    if given.write is not None:
        put_section(given.write, TITLE, text)


if __name__ == "__main__":
    main()
