"""What a layer's call does beside the operator: vllm-ascend's own MegaMoE path and ours, in turn, one process."""

import inspect
import os
from importlib import import_module
from typing import Any

import torch
from bench.around_calls import around
from contract.scenes.golden_pair import FORMATS, build_path
from contract.support import engine
from contract.support.boundary import CALL, OPERATOR
from contract.support.cases import CASES, HIDDEN
from contract.support.rank import Rank
from contract.support.values import rows_for

TOKENS = 3
"""A step of few rows, where the host decides; odd: the last rank's end in one that vllm-ascend has filled up with."""


def run(rank: Rank) -> dict[str, Any]:
    """Of each format: what was found of both paths (`bench.around_calls.Around`)."""
    npu = os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]
    cases = {case.name: case for case in CASES[npu]}
    silence()
    return {
        name: {path: _watched(*build_path(cases[name], rank, path)) for path in ("theirs", "ours")}
        for name in FORMATS[npu]
    }


def silence() -> None:
    """Let the operator's package return at once; before a layer takes the function."""
    operator = import_module(OPERATOR)
    whole, answers = getattr(operator, CALL), dict[Any, Any]()

    def nothing(x: Any, topk_ids: Any, topk_weights: Any, l1_weights: Any, *others: Any, **named: Any) -> Any:
        key = x.shape, len(l1_weights)
        if key not in answers:
            experts = len(l1_weights) if l1_weights[0].dim() == 2 else len(l1_weights[0])
            answers[key] = torch.zeros(x.shape, dtype=torch.bfloat16), torch.zeros(experts, dtype=torch.int32)
        return answers[key]

    nothing.__signature__ = inspect.signature(whole)  # type: ignore[attr-defined]
    setattr(operator, CALL, nothing)


def _watched(config: Any, block: Any) -> dict[str, Any]:
    experts, found = block.experts.routed_experts, dict[str, Any]()
    apply = experts.quant_method.apply

    def watched(**given: Any) -> Any:
        if not found:
            found.update(around(lambda: apply(**given)))
        return apply(**given)

    experts.quant_method.apply = watched
    engine.forward(config, block, rows_for("golden", TOKENS, HIDDEN))
    return found
