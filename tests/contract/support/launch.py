"""Starts the ranks of a run: fresh processes in which vllm-ascend meets a simulated NPU, and what they answer.

A run is a product, a number of ranks and a list of scenes, which all ranks go through in order: importing vllm and
vllm-ascend takes 7 seconds, so scenes share processes. A scene is a module `contract.scenes.NAME` with `run(rank)`.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from vllm_megamoe.environment import SIMULATED_NPU
from vllm_megamoe.simulator.install import path_entry

HERE = Path(__file__).resolve().parents[1]
TESTS, ROOT = HERE.parent, HERE.parents[1]
BASE, OPERATOR, ENGINE = (HERE / "stand_ins" / name for name in ("base", "operator", "engine"))
RUN_LIMIT_S = 600.0

# Variables of the caller's that would change what vLLM or the simulator do.
_DROPPED = ("VLLM_MEGAMOE_SIMULATE", "VLLM_MEGAMOE_PROFILE", "VLLM_PLUGINS", "HCCL_BUFFSIZE", "ASCEND_HOME_PATH")
_FIXED = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


class RunError(AssertionError):
    """A rank failed or gave no answer; the text has the end of its output."""


@dataclass
class Record:
    """What all runs of a session together asked their stand-ins for, and with which versions they ran."""

    asked: Counter[str] = field(default_factory=Counter)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Lines for the end of the run: counts that a test was asked to report."""


RECORD = Record()


def environment(
    npu: str, more: Mapping[str, str] | None = None, places: Sequence[Path] = (OPERATOR,)
) -> dict[str, str]:
    """The environment of a process with a simulated NPU, such as "a3@9.2".

    Args:
        npu: product and revision.
        more: further variables.
        places: folders of packages, one of which is `cann_ops_transformer`; nothing is written into one of others.
    """
    path = os.pathsep.join([path_entry(), str(BASE), *map(str, places), str(TESTS), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    fixed = _FIXED if OPERATOR in places else _FIXED | {"PYTHONDONTWRITEBYTECODE": "1"}
    return kept | fixed | {"PYTHONPATH": path, SIMULATED_NPU.name: npu} | dict(more or {})


def run(
    npu: str,
    scenes: Sequence[str],
    ranks: int = 1,
    more: Mapping[str, str] | None = None,
    places: Sequence[Path] = (OPERATOR,),
) -> dict[str, list[Any]]:
    """Go through the scenes; return the answers of each scene, one a rank. Other arguments: see `environment`.

    Raises:
        RunError: a rank ended with an error or gave no answer in time.
    """
    start = monotonic()
    with tempfile.TemporaryDirectory(prefix="contract-") as name:
        folder = Path(name)
        processes = [_start(environment(npu, more, places), scenes, rank, ranks, folder) for rank in range(ranks)]
        try:
            _wait(processes, folder)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        answers = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
    for answer in answers:
        RECORD.asked.update(answer["asked"])
        RECORD.versions.update(answer["versions"])
    RECORD.seconds[f"{npu}, {ranks} rank(s): {', '.join(scenes)}"] = monotonic() - start
    return {scene: [answer["scenes"][scene] for answer in answers] for scene in scenes}


def _start(
    variables: Mapping[str, str], scenes: Sequence[str], rank: int, ranks: int, folder: Path
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "contract.support.rank", str(folder), str(rank), str(ranks), *scenes]
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", folder: Path) -> None:
    deadline = monotonic() + RUN_LIMIT_S
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if failed:
            raise RunError("\n".join(f"rank {rank} of {len(codes)}: {_tail(folder, rank)}" for rank in failed))
        if None not in codes:
            return
        if monotonic() > deadline:
            silent = [rank for rank, code in enumerate(codes) if code is None]
            raise RunError(
                f"ranks {silent} of {len(codes)} gave no answer in {RUN_LIMIT_S:g} s\n"
                + "\n".join(f"rank {rank}: {_tail(folder, rank)}" for rank in silent)
            )
        sleep(0.05)


def _tail(folder: Path, rank: int, lines: int = 40) -> str:
    text = (folder / f"{rank}.log").read_text(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
