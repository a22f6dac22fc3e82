"""Communicators of the operator, from their making to their end: vllm-ascend's mc2 group, or one of our own beside it.

On A2 and A3 the main model shares the mc2 group's window, which HCCL_BUFFSIZE sizes. A 950 allocates for the operator
beside a communicator, once, so there, and for draft layers of another configuration, a group of our own is made. Its
name holds "mc2": vllm-ascend gives every other group a buffer of 200 MB (utils.py, get_hccl_config_for_pg_options).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.ascend import machine
from vllm_megamoe.layer.buffers import close_buffers, resume_buffers, suspend_buffers
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.plan.agreement import Communicator

MAIN: Communicator = "main"


@dataclass
class Groups:
    """The communicators beside one mc2 group; they live as long as it does.

    Attributes:
        mc2: vllm-ascend's GroupCoordinator.
        own: our GroupCoordinators, by the name of the communicator.
        asleep: the groups as they were when vllm-ascend took HCCL away, empty while it is there.
    """

    mc2: Any
    own: dict[str, Any] = field(default_factory=dict)
    asleep: dict[ProcessGroup, Any] = field(default_factory=dict)

    def coordinator(self, communicator: Communicator) -> Any:
        """That of a communicator; the main one is mc2's where none was made."""
        if communicator in self.own:
            return self.own[communicator]
        if communicator == MAIN:
            return self.mc2
        raise ConfigError(f"no group was made for the {communicator} model's experts. Report this model.")

    def prepare_hccl_teardown(self) -> bool:
        """vllm-ascend is about to destroy its groups for sleep mode: give back what stands on them.

        Called by name on every communication method (device_allocator/sleep_mem_optimized.py).
        """
        suspend_buffers()
        self.asleep = {each.device_group: each for each in (self.mc2, *self.own.values())}
        return True

    def refresh_hccl_runtime_state(self) -> bool:
        """The groups are there again, as new ones: have every buffer made anew on its own. Graphs are captured after.

        Called by name, as above, on all ranks alike.
        """
        if self.asleep:
            resume_buffers(lambda group: self.asleep[group].device_group)
            self.asleep = {}
        return True

    def end(self, destroy_mc2: Callable[[], None]) -> None:
        """Close what stands on the groups, then let them go."""
        global _groups
        close_buffers()
        for coordinator in self.own.values():
            coordinator.destroy()
        _groups = None
        destroy_mc2()


_groups: Groups | None = None


def open_groups(communicators: frozenset[Communicator]) -> None:
    """Make the groups of our own that a plan needs; collective over all ranks of the engine, once for an mc2 group.

    Args:
        communicators: of the plan's layers, equal on all ranks.
    """
    global _groups
    from vllm_ascend.distributed.parallel_state import get_mc2_group
    from vllm_ascend.ops.fused_moe.moe_comm_method import _MoECommMethods

    mc2 = get_mc2_group()
    if _groups is not None and _groups.mc2 is mc2:
        return
    shares = machine.built_for() != "950"
    names = sorted(name for name in communicators if name != MAIN or not shares)
    _groups = Groups(mc2, {name: _make(mc2, name) for name in names})
    mc2.destroy = partial(_groups.end, mc2.destroy)
    # Sleep mode looks for two functions by name in every value of this table.
    _MoECommMethods["megamoe", ()] = _groups


def _make(mc2: Any, name: str) -> Any:
    import torch
    from vllm.distributed.parallel_state import get_world_group, init_model_parallel_group

    world = get_world_group()
    return init_model_parallel_group(
        mc2.group_ranks,
        world.local_rank,
        torch.distributed.get_backend(world.device_group),
        group_name=f"megamoe_{name}_mc2",
    )


def told_by_all(said: list[str]) -> list[str]:
    """What the ranks of the mc2 group have to say, each sentence once, with the ranks that say it.

    Over the group's CPU side, on all ranks alike: a rank that refuses alone would leave the others waiting.
    """
    assert _groups is not None  # a layer's seat was read from it
    told: list[list[str]] = [[]] * _groups.mc2.world_size
    distributed.all_gather_object(told, said, group=_groups.mc2.cpu_group)
    sentences = dict.fromkeys(sentence for each in told for sentence in each)
    return [f"ranks {[rank for rank, each in enumerate(told) if one in each]}: {one}" for one in sentences]


def read_seat(layer: Any, communicator: Communicator = MAIN) -> Seat:
    """The communicator of a layer (AscendRoutedExperts).

    Raises:
        ConfigError: the layer's rank is not the group's, or experts are not placed in rank order; the operator's rank r
            holds experts [r * E, (r + 1) * E) (op tiling arch22).
    """
    from vllm.distributed import get_tensor_model_parallel_world_size

    parallel = layer.moe_config.moe_parallel_config
    if _groups is None:
        raise ConfigError(f"{layer.layer_name}: built before its worker was started. Report this model.")
    group = _groups.coordinator(communicator)
    if group.rank_in_group != parallel.ep_rank or group.world_size != parallel.ep_size:
        raise ConfigError(
            f"the layer says expert-parallel rank {parallel.ep_rank} of {parallel.ep_size}, the mc2 group "
            f"{group.rank_in_group} of {group.world_size}; expected the same. This vllm-ascend build is not supported."
        )
    strategy = layer.expert_map_manager.placement_strategy
    if strategy != "linear":
        raise ConfigError(
            f"{layer.layer_name}: expert placement {strategy!r}; expected 'linear'. Drop --expert-placement-strategy."
        )
    # vllm-ascend splits a step's rows over the tensor-parallel ranks before a layer (prepare_finalize.py).
    place = group.rank_in_group % get_tensor_model_parallel_world_size()
    seat = Seat(group.device_group, group.rank_in_group, group.world_size, _never)
    return replace(seat, first_row=lambda rows: place * rows)


def _never(rows: Tensor) -> Tensor:
    raise ConfigError("rows are this rank's own here, none are gathered; report this model.")
