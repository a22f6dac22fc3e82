"""A simulated product: the two modules that the CANN adapter imports, over communicators of this process."""

from functools import cache
from types import ModuleType

from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.simulator.communicator import Communicators
from vllm_megamoe.simulator.kernel.read import refuse
from vllm_megamoe.simulator.npu import make_small_torch_npu
from vllm_megamoe.simulator.package import make_operators


class Device:
    """One product with one revision of the operator.

    Args:
        name: of the profile, such as "a3@9.1".

    Attributes:
        profile: of that name.
        communicators: those of this process.
        modules: `torch_npu` and `cann_ops_transformer.ops`; they are in no import path.
    """

    def __init__(self, name: str) -> None:
        self.profile = find_profile(name)
        self.communicators = Communicators(self.profile)
        self.modules: dict[str, ModuleType] = {
            "torch_npu": make_small_torch_npu(self.profile),
            "cann_ops_transformer.ops": make_operators(self.profile, self.communicators),
        }

    def make_communicator(self, group: ProcessGroup) -> None:
        """As `group._get_backend(npu).get_hccl_comm_name(rank)` does: afterwards the communicator exists."""
        self.communicators.make(group)

    def refuse(self, context: Tensor, error: Exception) -> None:
        """Tell the other ranks of a call on a buffer's context that the adapter rejects: they must not wait for it."""
        refuse(context, error)


@cache
def device(name: str) -> Device:
    """The simulated device of that name; one in a process, as communicators are."""
    return Device(name)
