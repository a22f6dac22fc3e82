"""MoE layers under vllm-ascend's runner through our method: what reached the operator, and what came out."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import CASES, HIDDEN, LIMIT, Case
from contract.support.twin import Twin
from contract.support.values import rows_for
from contract.support.weights import checkpoint

if TYPE_CHECKING:
    from contract.support.rank import Rank

ABOVE = LIMIT + 2
"""Tokens beyond what was planned, one row a rank more."""


def run(rank: "Rank") -> dict[str, Any]:
    """Of each case of the product: its plan, the calls, the rows of each step, what is said beyond the limit."""
    product, boundary = os.environ["VLLM_MEGAMOE_SIMULATED_NPU"], Boundary()
    return {case.name: _run_one(case, product, boundary, rank) for case in CASES[product]}


def _run_one(case: Case, product: str, boundary: Boundary, rank: "Rank") -> dict[str, Any]:
    start = len(boundary.events)
    with Casts() as casts:
        config, block = build(case, rank)
    steps, answer = Steps(block), _shown(config, block) | {"casts": casts.seen}
    answer["rows"] = {n: engine.forward(config, block, rows_for(case.name, n, HIDDEN)) for n in case.tokens}
    answer["events"] = boundary.since(start)
    answer["differs"] = steps.beside(case, product, answer["padded to"]) if answer["chunk"] * rank.size > LIMIT else []
    answer["above"] = _said(config, block, case)
    return answer


class Casts:
    """Every cast that this package asks torch_npu for while it is open; vllm-ascend casts layers of its own."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self._npu = import_module("torch_npu")
        self._right = self._npu.npu_format_cast

    def __enter__(self) -> "Casts":
        self._npu.npu_format_cast = self._noted
        return self

    def __exit__(self, *reason: object) -> None:
        self._npu.npu_format_cast = self._right

    def _noted(self, tensor: torch.Tensor, acl_format: int, **types: Any) -> torch.Tensor:
        made: torch.Tensor = self._right(tensor, acl_format, **types)
        if sys._getframe(1).f_globals["__name__"] != "vllm_megamoe.layout.cast":
            return made
        seen = {"shape": list(tensor.shape), "contiguous": tensor.is_contiguous(), "asked": int(acl_format)}
        named = {name: str(value) for name, value in types.items()}
        self.seen.append(seen | {"got": int(self._npu.get_npu_format(made))} | named)
        return made


def build(case: Case, rank: "Rank", options: dict[str, Any] | None = None, **theirs: Any) -> tuple[Any, Any]:
    """An engine's config and a loaded layer; with more options of ours, and of vllm-ascend, than the case has."""
    config = engine.make_config(
        engine.model_of(case).write(rank.own_folder(case.name)),
        quantization="megamoe",
        tokens=LIMIT,
        additional_config={"megamoe": case.options | (options or {})} | case.theirs | theirs,
    )
    if torch.distributed.is_initialized():
        engine.renew_state(config)
    else:
        engine.start_worker(config, rank.number, rank.meeting_point)
    block = engine.build_block(config)
    engine.load(block, checkpoint(case))
    engine.finish_loading(config, block)
    return config, block


class Steps:
    """What went into the method of a layer and what came out of it, step by step."""

    def __init__(self, block: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        self.layer = block.experts.routed_experts
        self._apply = self.layer.quant_method.apply
        self.layer.quant_method.apply = self._watched

    def _watched(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, **others: Any) -> Any:
        given = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights, "active": layer.ascend_mc2_mask}
        kept = {name: value.clone() for name, value in given.items()}
        result = self._apply(layer=layer, x=x, topk_weights=topk_weights, topk_ids=topk_ids, **others)
        self.seen.append(kept | {"y": result.routed_out.clone()})
        return result

    def beside(self, case: Case, product: str, padded: int) -> list[str]:
        """Steps whose rows are not the twin's, bit for bit."""
        from vllm_ascend.distributed.parallel_state import get_mc2_group

        twin, differs = Twin(case, product, get_mc2_group().cpu_group, padded), []
        for step in self.seen:
            y = step.pop("y")
            with torch.inference_mode():
                expected = twin.rows(**step)
            if not torch.equal(y, expected):
                error = (y.double() - expected.double()).abs().max()
                differs.append(f"{len(y)} rows: by {error:g} of {expected.abs().max():g}")
        return differs


def _shown(config: Any, block: Any) -> dict[str, Any]:
    from vllm_ascend.distributed.parallel_state import get_mc2_group

    experts = block.experts.routed_experts
    plan = experts.mega_moe.plan
    return {
        "mc2 group": get_mc2_group().device_group.group_name,
        "profile": plan.profile.name,
        "use case": plan.use_case.value,
        "chunk": plan.capacity.chunk,
        "shared": plan.shared.mode,
        "theirs": block.experts.ascend_shared_experts is not None,
        "padded to": plan.padding.intermediate_hidden,
        "options left": sorted(config.additional_config),
        "quant type": experts.quant_type.name,
    }


def _said(config: Any, block: Any, case: Case) -> str:
    """What the layer says to more tokens than were planned."""
    try:
        engine.forward(config, block, rows_for(case.name, ABOVE, HIDDEN))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
