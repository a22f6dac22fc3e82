"""One checkpoint of each weight format through vllm-ascend's own MegaMoE path and through ours: both paths' calls."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import CASES, HIDDEN, Case
from contract.support.rank import Rank
from contract.support.values import rows_for
from contract.support.weights import checkpoint
from torch import Tensor

TOKENS, LIMIT = 5, 1024
FORMATS = {"a3@9.2": ("bf16", "w8a8", "w4a8"), "950@9.2": ("mxfp8", "w4a8 mxfp", "mxfp4")}


def run(rank: Rank) -> dict[str, Any]:
    """Of each format: the events and the rows of both paths."""
    npu = os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]
    boundary = Boundary()
    cases = {case.name: case for case in CASES[npu]}
    return {
        name: {path: _run_one(boundary, cases[name], rank, path) for path in ("theirs", "ours")}
        for name in FORMATS[npu]
    }


def build_path(case: Case, rank: Rank, path: str) -> tuple[Any, Any]:
    """An engine's config and a loaded layer, on vllm-ascend's own MegaMoE path (`theirs`) or on ours."""
    ours = path == "ours"
    flag = "megamoe" if ours else None if case.weights == "BF16" else "ascend"
    config = engine.make_config(
        engine.model_of(case).write(rank.own_folder(f"{path}-{case.name}")),
        quantization=flag,
        tokens=LIMIT,
        additional_config={"megamoe": {}} if ours else {"enable_fused_mc2": 2},
    )
    if torch.distributed.is_initialized():
        engine.renew_state(config)
    else:
        engine.start_worker(config, rank.number, rank.meeting_point)
    block = engine.build_block(config)
    engine.load(block, _whole(case))
    engine.finish_loading(config, block)
    return config, block


def _run_one(boundary: Boundary, case: Case, rank: Rank, path: str) -> dict[str, Any]:
    start = len(boundary.events)
    config, block = build_path(case, rank, path)
    rows = engine.forward(config, block, rows_for("golden", TOKENS, HIDDEN))
    return {"rows": rows, "events": boundary.since(start)}


def _whole(case: Case) -> Iterator[tuple[str, Tensor]]:
    """The checkpoint; the correction of W4A8's second weight in 16 parts, as msModelSlim writes it."""
    for name, tensor in checkpoint(case):
        in_parts = name.endswith("down_proj.scale_bias")
        yield name, torch.nn.functional.pad(tensor, (0, 15)) if in_parts else tensor
