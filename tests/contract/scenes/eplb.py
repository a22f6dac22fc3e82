"""Experts moved between ranks by vllm-ascend's own adaptor and loader, and experts that a file places."""

import json
import os
from types import SimpleNamespace
from typing import Any

import torch
from contract.scenes.layer import build
from contract.support import engine
from contract.support.cases import CASES, HIDDEN, Case
from contract.support.rank import Rank
from contract.support.values import rows_for

LEAVES = (1, 5)
"""Logical experts of rank 0 and rank 1 that change places: both stand in slot 1."""
SLOTS = [7, 2, 5, 0, 1, 6, 1, 0, 3, 2, 4, 5]


def run(rank: Rank) -> dict[str, Any]:
    """By case: rows before and after a move, those with a placement file, and what EPLB has counted."""
    os.environ["DYNAMIC_EPLB"] = "true"
    placement = rank.own_folder("placement") / "placement.json"
    layers = {f"{engine.PREFIX}.experts": SLOTS}
    placement.write_text(json.dumps({"format": "megamoe expert placement 1", "layers": layers}))
    found = {}
    for case in CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]]:
        if not case.shared and not case.options:
            found[case.name] = _moved(case, rank) | {"placed": _placed(case, rank, str(placement))}
    return found


def _step(config: Any, block: Any, case: Case) -> Any:
    return engine.forward(config, block, rows_for(case.name, 16, HIDDEN))


def _placed(case: Case, rank: Rank, file: str) -> Any:
    return _step(*build(case, rank, {"expert_placement": file}), case)


def _moved(case: Case, rank: Rank) -> dict[str, Any]:
    from vllm_ascend.eplb.adaptor.vllm_adaptor import VllmEplbAdaptor
    from vllm_ascend.eplb.core.eplb_device_transfer_loader import D2DExpertWeightLoader

    VllmEplbAdaptor._registered_moe_layers.clear()
    config, block = build(case, rank, eplb_config={"dynamic_eplb": True})
    layer = block.experts.routed_experts
    answer = {"before": _step(config, block, case), "dynamic": layer.dynamic_eplb}
    adaptor = VllmEplbAdaptor(SimpleNamespace(config=SimpleNamespace(), quant_config=config.quant_config))
    adaptor.get_global_expert_map()
    loader = D2DExpertWeightLoader()
    loader.set_adator(adaptor)
    goes, comes = LEAVES if rank.number == 0 else LEAVES[::-1]
    experts = adaptor.expert_map_per_layer_cpu[0].clone()
    experts[comes], experts[goes] = experts[goes].item(), -1
    physical = torch.arange(8, dtype=torch.int32)
    physical[list(LEAVES)] = physical[list(LEAVES[::-1])]
    peer, requests = 1 - rank.number, []
    loader.set_log2phy_map(physical)
    loader.generate_expert_d2d_transfer_task([(peer, goes)], [(peer, comes)], experts, 0)
    loader.asyn_expert_weight_transfer(requests)
    loader.update_expert_map_and_weight(requests)
    answer["log2phy"] = layer.log2phy.tolist()
    answer["after"] = _step(config, block, case)
    answer["load"] = int(layer.moe_load.sum())
    return answer
