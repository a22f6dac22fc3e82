"""MoE layers under vllm-ascend's runner through our method: what reached the operator, and what came out."""

import os
from typing import Any

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import CASES, HIDDEN, LIMIT, Case
from contract.support.rank import Rank
from contract.support.values import rows_for

ABOVE = LIMIT + 2
"""Tokens beyond what was planned, one row a rank more."""


def run(rank: Rank) -> dict[str, Any]:
    """Of each case of the product: its plan, the calls, the rows of each step, what is said beyond the limit."""
    boundary, answers = Boundary(), {}
    for case in CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]]:
        start = len(boundary.events)
        config, block = build(case, rank)
        answers[case.name] = _shown(config, block) | {
            "rows": {n: engine.forward(config, block, rows_for(case.name, n, HIDDEN)) for n in case.tokens},
            "above": _said(config, block, case),
            "events": boundary.since(start),
        }
    return answers


def build(case: Case, rank: Rank) -> tuple[Any, Any]:
    """An engine's config and a loaded layer."""
    config = engine.make_config(
        engine.model_of(case).write(rank.own_folder(case.name)),
        quantization="megamoe",
        tokens=LIMIT,
        additional_config={"megamoe": case.options},
    )
    if torch.distributed.is_initialized():
        engine.renew_state(config)
    else:
        engine.start_worker(config, rank.number, rank.meeting_point)
    block = engine.build_block(config)
    engine.load(block, case.checkpoint())
    engine.finish_loading(config, block)
    return config, block


def _shown(config: Any, block: Any) -> dict[str, Any]:
    from vllm_ascend.distributed.parallel_state import get_mc2_group

    plan = block.experts.routed_experts.mega_moe.plan
    return {
        "mc2 group": get_mc2_group().device_group.group_name,
        "profile": plan.profile.name,
        "chunk": plan.capacity.chunk,
        "shared": plan.shared.mode,
        "padded to": plan.padding.intermediate_hidden,
        "options left": sorted(config.additional_config),
    }


def _said(config: Any, block: Any, case: Case) -> str:
    """What the layer says to more tokens than were planned."""
    try:
        engine.forward(config, block, rows_for(case.name, ABOVE, HIDDEN))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
