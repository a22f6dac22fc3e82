"""A layer's seat: the expert-parallel communicator of vLLM's parallel state, and what its ranks bring to a step."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.distributed import get_ep_group
from vllm.forward_context import get_forward_context

from vllm_megamoe.errors import ConfigError, PeerError
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.plan.agreement import Communicator


def read_seat(layer: Any, communicator: Communicator = "main") -> Seat:
    """The expert-parallel communicator of a layer (RoutedExperts), or another one over its ranks for draft layers.

    Raises:
        ConfigError: the layer's rank is not the group's, or experts are not placed in rank order; the operator's rank r
            holds experts [r * E, (r + 1) * E) (op tiling arch22; vllm-ascend places them so too).
    """
    parallel = layer.moe_config.moe_parallel_config
    if parallel.ep_size == 1:
        return Seat(group=None, rank=0, size=1, all_gather=_alone)
    _check_placement(layer)
    group = get_ep_group()
    if group.rank_in_group != parallel.ep_rank or group.world_size != parallel.ep_size:
        raise ConfigError(
            f"the layer says expert-parallel rank {parallel.ep_rank} of {parallel.ep_size}, the communicator "
            f"{group.rank_in_group} of {group.world_size}; expected the same. This vLLM build is not supported."
        )
    own = group.device_group if communicator == "main" else _of_drafts(group)
    seat = Seat(group=own, rank=group.rank_in_group, size=group.world_size, all_gather=_gather)
    if parallel.dp_size == 1:
        return seat
    place = group.rank_in_group % parallel.sp_size
    return replace(seat, largest_rows=partial(largest_rows, parallel.sp_size), first_row=lambda rows: place * rows)


_drafts: dict[str, tuple[Any, Any]] = {}
"""The drafts' group by the name of vLLM's group over the same ranks, and that group: its name may come back."""


def _of_drafts(group: Any) -> Any:
    """A second torch group over the ranks of vLLM's, made by these ranks together when first asked for."""
    main = group.device_group
    known = _drafts.get(main.group_name)
    if known is None or known[0] is not main:
        # The ranks of other pipeline stages or replicas have no draft layer to come here with.
        made = torch.distributed.new_group(
            group.ranks,
            backend=torch.distributed.get_backend(main),
            use_local_synchronization=True,
            group_desc="megamoe_draft",
        )
        known = _drafts[main.group_name] = (main, made)
    return known[1]


def largest_rows(sp_size: int, rows: int) -> int:
    """The largest number of rows that a rank brings to a MoE layer in the step that runs.

    vLLM exchanges the data-parallel ranks' numbers on the host before every step, so this costs no collective.

    Args:
        sp_size: tensor-parallel ranks that a sequence-parallel model splits its rows over, each getting the ceiling.
        rows: this rank's, for the message.

    Raises:
        PeerError: vLLM exchanged nothing, so ranks cannot agree on the number of calls (B15).
    """
    exchanged = get_forward_context().dp_metadata
    if exchanged is None:
        raise PeerError(
            f"this rank brings {rows} rows and vLLM has not exchanged the data-parallel ranks' numbers for this step; "
            "the operator needs the same number of calls on all ranks. Do not turn off the exchange between "
            "data-parallel ranks."
        )
    most: int = max(exchanged.num_tokens_across_dp_cpu.tolist())
    return -(-most // sp_size)


def _check_placement(layer: Any) -> None:
    strategy = layer.expert_map_manager.placement_strategy
    if strategy != "linear":
        raise ConfigError(
            f"{layer.layer_name}: expert placement {strategy!r}; expected 'linear'. Drop --expert-placement-strategy."
        )


def _gather(rows: Tensor) -> Tensor:
    gathered: Tensor = get_ep_group().all_gather(rows, dim=0)
    return gathered


def _alone(rows: Tensor) -> Tensor:
    return rows
