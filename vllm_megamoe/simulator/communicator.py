"""HCCL communicators: one a process group, with the window that it owns from its creation on."""

from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.window_size import hccl_buffsize
from vllm_megamoe.simulator.context import make_context, no_context
from vllm_megamoe.simulator.deviations import active_deviations
from vllm_megamoe.simulator.memory import Memory

MIB = 1 << 20
_UNTOUCHED, _CLEARED = 0xFF, 0


class Communicator:
    """One group's communicator on one product.

    Args:
        name: of the communicator.
        group: of the ranks.
        profile: product and revision.
        buffsize_mb: size of one direction, HCCL_BUFFSIZE where None.

    Attributes:
        window_bytes: what HCCL reports for the window, both directions.
        window: the memory that all buffers of the communicator share on A2/A3.
        own: memory that the first buffer allocated on 950, None before it.
    """

    def __init__(self, name: str, group: ProcessGroup, profile: Profile, buffsize_mb: int | None = None) -> None:
        self.name, self.group, self.profile = name, group, profile
        if buffsize_mb is None:
            buffsize_mb = hccl_buffsize()
        factor = 1 if active_deviations().window_factor_1 else 2
        self.window_bytes = factor * buffsize_mb * MIB
        self.window = Memory(group, 1, _UNTOUCHED)
        self.own: Memory | None = None

    def open(self, wanted_bytes: int) -> tuple[Tensor, int, Memory | None]:
        """What a new buffer gets: context, ccl_buffer_size, and the memory that it must free.

        On 950 the engine's context is cached under the group's name: a second buffer finds the first one's, takes
        neither addresses nor an allocation from it, and reports the window's size (op csrc, comm_context).
        """
        rank, ranks = self.group.rank(), self.group.size()
        if not self.profile.is_950:
            return make_context(rank, ranks, self.window.address), self.window_bytes, None
        if self.own is not None:
            return no_context(), self.window_bytes, None
        self.own = Memory(self.group, 1, _CLEARED)
        return make_context(rank, ranks, self.own.address), wanted_bytes, self.own


class Communicators:
    """All communicators of a simulated device in this process; they live as long as it does."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._of: dict[ProcessGroup, Communicator] = {}

    def make(self, group: ProcessGroup, buffsize_mb: int | None = None) -> Communicator:
        """The group's communicator, made if there is none; a second call changes nothing."""
        found = self._of.get(group)
        if found is None:
            name = f"hccl_{group.group_name}_{len(self._of)}"
            found = self._of[group] = Communicator(name, group, self.profile, buffsize_mb)
        return found

    def find(self, group: ProcessGroup) -> Communicator:
        """The communicator that exists; the operator looks it up with init_comm=False.

        Raises:
            RuntimeError: nobody made it.
        """
        found = self._of.get(group)
        if found is None:
            raise RuntimeError(
                f"the HCCL communicator of group {group.group_name} does not exist; call "
                'group._get_backend(torch.device("npu")).get_hccl_comm_name(rank) first'
            )
        return found

    def named(self, name: str) -> Communicator:
        """The communicator of that name.

        Raises:
            RuntimeError: there is none.
        """
        for found in self._of.values():
            if found.name == name:
                return found
        raise RuntimeError(f"there is no HCCL communicator {name!r}")
