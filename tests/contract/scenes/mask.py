"""How many rows and mask entries a rank gets when the tokens do not divide by TP and fill the batch."""

from typing import Any

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.rank import Rank
from contract.support.values import rows_for

TOKENS = 513


def run(rank: Rank) -> dict[str, Any]:
    """Rows and mask entries of one step of 513 tokens under max_num_batched_tokens=513, and what the operator said."""
    boundary = Boundary()
    config = engine.make_config(
        engine.Model().write(rank.own_folder("mask")), tokens=TOKENS, additional_config={"enable_fused_mc2": 2}
    )
    if torch.distributed.is_initialized():
        engine.renew_state(config)
    else:
        engine.start_worker(config, rank.number, rank.meeting_point)
    block = engine.build_block(config)
    engine.fill(block, rank.number, rank.size)
    engine.finish_loading(config, block)
    said = None
    try:
        engine.forward(config, block, rows_for("mask", TOKENS, block.gate.weight.shape[1]))
    except Exception as error:  # the operator's refusal is what this scene is about
        said = f"{type(error).__name__}: {error}"
    given = boundary.events[-1]["given"]
    return {"rows": given["x"]["shape"][0], "mask": given["x_active_mask"]["shape"][0], "said": said}
