"""HCCL taken away and restored around a layer by vllm-ascend's own manager of sleep mode; the end of the groups."""

import os
from types import SimpleNamespace
from typing import Any

import torch
from contract.scenes.layer import build
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import CASES, HIDDEN
from contract.support.rank import Rank
from contract.support.values import rows_for

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layer.buffers import handles


def run(rank: Rank) -> dict[str, Any]:
    """Rows before, what a step says while HCCL is away, rows after; then what is left once the groups are gone."""
    from vllm_ascend.device_allocator.sleep_mem_optimized import HcclSleepWakeupManager
    from vllm_ascend.distributed.parallel_state import destroy_ascend_model_parallel

    boundary = Boundary()
    case = CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]][0]
    config, block = build(case, rank)
    layer = block.experts.routed_experts
    answer: dict[str, Any] = {"before": _step(config, block), "group before": layer.mega_moe_buffer.group.group_name}
    manager = HcclSleepWakeupManager(config, SimpleNamespace())
    manager.sleep()
    answer["asleep"] = _said(config, block)
    manager.wakeup()
    answer |= {"after": _step(config, block), "group after": layer.mega_moe_buffer.group.group_name}
    answer["same buffer"] = layer.mega_moe.buffer is layer.mega_moe_buffer
    answer["events"] = [event["call"] for event in boundary.events]
    answer["open"] = len(handles())
    destroy_ascend_model_parallel()
    answer["open at the end"] = len(handles())
    # The next scene finds groups, as every scene does.
    engine.renew_state(config)
    return answer


def _step(config: Any, block: Any) -> torch.Tensor:
    out: torch.Tensor = engine.forward(config, block, rows_for("sleep", 5, HIDDEN))
    return out


def _said(config: Any, block: Any) -> str:
    try:
        _step(config, block)
    except OperatorError as error:
        return str(error)
    return ""
