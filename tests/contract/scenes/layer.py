"""One MoE layer under vllm-ascend's runner through our method: what reached the operator, and what came out."""

from typing import Any

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.rank import Rank
from contract.support.values import rows_for

TOKENS = (1, 5, 16)


def run(rank: Rank) -> dict[str, Any]:
    boundary = Boundary()
    config = engine.make_config(
        engine.Model().write(rank.own_folder("layer")),
        quantization="megamoe",
        additional_config={"megamoe": {}},
    )
    if torch.distributed.is_initialized():
        engine.renew_state(config)
    else:
        engine.start_worker(config, rank.number, rank.meeting_point)
    block = engine.build_block(config)
    engine.fill(block, rank.number, rank.size)
    engine.finish_loading(config, block)
    answer = {}
    for tokens in TOKENS:
        answer[tokens] = engine.forward(config, block, rows_for("layer", tokens, 1024))
    return {"rows": answer, "events": boundary.events, "profile": config.quant_config.carried.plan.profile.name}
