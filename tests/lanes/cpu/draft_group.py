"""One of two ranks: seats of the main model's and of a draft's layers, and a buffer on each of their communicators."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan

ENGINE = EngineFacts("bfloat16", data_parallel=2, expert_parallel=True, max_num_batched_tokens=8)
MAIN = MoeFacts("model.layers.0.mlp.experts", 8, 2, 1024, 256, index=0)
DRAFT = MoeFacts("model.layers.1.mlp.experts", 4, 2, 1024, 256, index=1, draft=True)


def layer(rank: int) -> Any:
    parallel = SimpleNamespace(ep_rank=rank, ep_size=2, dp_size=1, sp_size=1)
    return SimpleNamespace(
        layer_name="model.layers.0.mlp.experts",
        moe_config=SimpleNamespace(moe_parallel_config=parallel),
        expert_map_manager=SimpleNamespace(placement_strategy="linear"),
    )


def seats(rank: int) -> dict[str, Any]:
    """What this rank sees."""
    from vllm_megamoe.lanes.cpu import parallel_state as state
    from vllm_megamoe.layer.buffers import close_buffers, open_handle

    main_group = dist.new_group([0, 1])
    group = SimpleNamespace(rank_in_group=rank, world_size=2, device_group=main_group, ranks=[0, 1])
    state.get_ep_group = lambda: group
    main, draft, again = (state.read_seat(layer(rank), name) for name in ("main", "draft", "draft"))
    assert draft.group is not None
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total, group=draft.group)
    plan = make_plan(ENGINE, [MAIN, DRAFT], Options(profile="950@9.2", requant="allow", max_padding_overhead=9.0))
    first, second = plan.layers
    buffers = [open_handle("main", first, main).buffer, open_handle("draft", second, draft).buffer]
    refused = ""
    try:
        open_handle("draft", second, main)
    except ConfigError as error:
        refused = str(error)
    close_buffers()
    return {
        "communicators": (first.communicator, second.communicator),
        "one": main.group is main_group and again.group is draft.group and draft.group is not main_group,
        "sum": float(total),
        "experts": [buffer.num_experts for buffer in buffers],
        "refused": refused,
    }
