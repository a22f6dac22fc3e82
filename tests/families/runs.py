"""Jobs for the driver: which engines run in one process, and the processes of one job."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engine.engines import engine_environment, free_port, stop_group
from families.layouts import LAYOUTS, Layout
from families.models import FAMILIES
from torch import Tensor

TIMEOUT_S = 600
TESTS = Path(__file__).resolve().parents[1]

# vLLM's rotary kernel for CPUs misreads the strided rows of latent attention, so that a row's values depend on its
# neighbours; its own PyTorch form of the same operation agrees with transformers.
SAME_FOR_ALL: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_batched_tokens": 128,
    "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]},
    "seed": 0,
}


@dataclass(frozen=True)
class Run:
    """What one rank of an engine gave, by damage; `none` is the whole engine."""

    results: dict[str, dict[str, Tensor]]
    layers: list[dict[str, Any]]


def engine(family: str, checkpoint: Path, mode: str, layout: str) -> dict[str, Any]:
    """The driver's description of one engine: `own` for vLLM's own MoE, else one of the family's modes."""
    llm: dict[str, Any] = {"model": str(checkpoint), **SAME_FOR_ALL, **LAYOUTS[layout].llm}
    if mode != "own":
        llm["quantization"] = "megamoe"
    if mode == "apart":
        llm["additional_config"] = {"megamoe": {"fuse_shared_experts": "off"}}
    return {
        "name": f"{family} {mode}",
        "architecture": FAMILIES[family].architecture,
        "llm": llm,
        "damages": [] if mode == "own" else FAMILIES[family].damages(mode, layout),
        "port": str(free_port()),
    }


def run(
    folder: Path, engines: list[dict[str, Any]], prompts: list[list[list[int]]], layout: Layout
) -> list[dict[str, Run]]:
    """Run all engines of a job, one after the other, on every rank at once.

    Args:
        prompts: of each data-parallel replica.

    Returns:
        By rank and by the engine's name.
    """
    folder.mkdir()
    processes = []
    for rank in range(layout.ranks):
        job = {"engines": engines, "prompts": prompts[layout.replica_of(rank)]}
        (folder / f"job{rank}.json").write_text(json.dumps(job))
        processes.append(_start(folder, rank, layout.ranks))
    try:
        codes = [process.wait(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            stop_group(process)
    if any(codes):
        tails = [(folder / f"log{rank}.txt").read_text()[-6000:] for rank in range(layout.ranks)]
        raise RuntimeError(f"engine processes ended with {codes}; their logs end with\n" + "\n=====\n".join(tails))
    return [_read(folder / f"result{rank}.pt") for rank in range(layout.ranks)]


def _start(folder: Path, rank: int, ranks: int) -> "subprocess.Popen[bytes]":
    # The models are so small that threads would spend their time on waiting for each other.
    env = engine_environment() | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": _python_path(),
    }
    if ranks > 1:
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    files = [str(folder / f"job{rank}.json"), str(folder / f"result{rank}.pt")]
    log = (folder / f"log{rank}.txt").open("w")
    command = [sys.executable, "-m", "families.driver", *files]
    return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _python_path() -> str:
    own = [str(TESTS), str(TESTS.parent)]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _read(file: Path) -> dict[str, Run]:
    found: dict[str, Any] = torch.load(file)
    return {name: Run(results, results.pop("layers")) for name, results in found.items()}
