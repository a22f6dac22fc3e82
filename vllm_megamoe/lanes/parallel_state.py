"""The layer's seat out of vLLM's parallel state (vLLM 0.32)."""

from typing import Any

from torch import Tensor
from vllm.distributed import get_ep_group

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.method.seat import Seat


def read_seat(moe_config: Any) -> Seat:
    """The expert-parallel communicator of a layer.

    Raises:
        ConfigError: the layer's rank is not the group's, or experts are not placed in rank order; the operator's rank r
            holds experts [r * E, (r + 1) * E) (op tiling arch22; vllm-ascend places them so too).
    """
    parallel = moe_config.moe_parallel_config
    if parallel.ep_size == 1:
        return Seat(group=None, rank=0, size=1, all_gather=_alone)
    group = get_ep_group()
    if group.rank_in_group != parallel.ep_rank or group.world_size != parallel.ep_size:
        raise ConfigError(
            f"the layer says expert-parallel rank {parallel.ep_rank} of {parallel.ep_size}, the communicator "
            f"{group.rank_in_group} of {group.world_size}; wanted the same. This vLLM build is not supported."
        )
    return Seat(group=group.device_group, rank=group.rank_in_group, size=group.world_size, all_gather=_gather)


def check_placement(layer: Any) -> None:
    """Refuse a layer whose experts are not placed in rank order."""
    strategy = layer.expert_map_manager.placement_strategy
    if layer.moe_config.moe_parallel_config.ep_size > 1 and strategy != "linear":
        raise ConfigError(
            f"{layer.layer_name}: expert placement {strategy!r}; wanted 'linear'. Drop --expert-placement-strategy."
        )


def _gather(rows: Tensor) -> Tensor:
    gathered: Tensor = get_ep_group().all_gather(rows, dim=0)
    return gathered


def _alone(rows: Tensor) -> Tensor:
    return rows
