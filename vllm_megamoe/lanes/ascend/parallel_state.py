"""A layer's seat: the communicator of vllm-ascend's mc2 group, whose window HCCL_BUFFSIZE sizes."""

from typing import Any

from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer.rows import Seat


def read_seat(layer: Any) -> Seat:
    """The communicator of a layer (AscendRoutedExperts).

    Raises:
        ConfigError: the layer's rank is not the group's, or experts are not placed in rank order.
    """
    from vllm_ascend.distributed.parallel_state import get_mc2_group

    parallel = layer.moe_config.moe_parallel_config
    group = get_mc2_group()
    if group.rank_in_group != parallel.ep_rank or group.world_size != parallel.ep_size:
        raise ConfigError(
            f"the layer says expert-parallel rank {parallel.ep_rank} of {parallel.ep_size}, the mc2 group "
            f"{group.rank_in_group} of {group.world_size}; expected the same. This vllm-ascend build is not supported."
        )
    return Seat(group=group.device_group, rank=group.rank_in_group, size=group.world_size, all_gather=_never)


def _never(rows: Tensor) -> Tensor:
    raise ConfigError("rows are this rank's own here, none are gathered; report this model.")
