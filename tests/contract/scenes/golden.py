"""What vllm-ascend's own MegaMoE path hands to the operator, for each weight format that the product takes."""

import os
from typing import Any

from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.rank import Rank
from contract.support.values import rows_for

TOKENS = 5
EXPERTS = "model.layers.0.mlp.experts.0"
MLP = "model.layers.0.mlp.gate.weight"
TYPES = {
    "a3": ("BF16", "W8A8_DYNAMIC", "W4A8_DYNAMIC"),
    "950": ("W8A8_MXFP8", "W4A8_MXFP", "W4A4_MXFP4"),
}
"""msModelSlim's names; the order is that of the release's own table (ops/fused_moe/moe_utils.py)."""


def run(rank: Rank) -> dict[str, Any]:
    """One layer a weight format: its parameters, the calls of two steps, the first step's rows, or why it stopped."""
    boundary = Boundary()
    product = os.environ["VLLM_MEGAMOE_SIMULATED_NPU"].split("@")[0]
    answers: dict[str, Any] = {}
    for weights in TYPES[product]:
        config = engine.make_config(
            _model(weights).write(rank.own_folder(weights)),
            quantization=None if weights == "BF16" else "ascend",
            additional_config={"enable_fused_mc2": 2},
        )
        if not answers:
            engine.start_worker(config, rank.number, rank.meeting_point)
        else:
            engine.renew_state(config)
        answers[weights] = _run_one(boundary, config, rank)
    return answers


def _model(weights: str) -> engine.Model:
    if weights == "BF16":
        return engine.Model()
    experts = {f"{EXPERTS}.{name}.weight": weights for name in ("gate_proj", "up_proj", "down_proj")}
    return engine.Model(description={"model_quant_type": weights, MLP: "FLOAT", **experts})


def _run_one(boundary: Boundary, config: Any, rank: Rank) -> dict[str, Any]:
    start, answer = len(boundary.events), {}
    block = engine.build_block(config)
    engine.fill(block, rank.number, rank.size)
    experts = block.experts.routed_experts
    answer["classes"] = [type(each).__qualname__ for each in (block.experts, experts, experts.quant_method)]
    answer["parameters"] = {
        name: [str(parameter.dtype).removeprefix("torch."), list(parameter.shape)]
        for name, parameter in experts.named_parameters()
    }
    x = rows_for("golden", TOKENS, block.gate.weight.shape[1])
    step = "process_weights_after_loading"
    try:
        engine.finish_loading(config, block)
        step = "forward"
        answer["rows"] = engine.forward(config, block, x)
        engine.forward(config, block, x)
    except Exception as error:  # a format that stops here is a finding, and the next one still runs
        answer["stopped"] = {"step": step, "kind": type(error).__name__, "message": str(error)}
    answer["events"] = boundary.since(start)
    return answer
