"""One simulated call, from the operator's arguments to its results."""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.facts import facts_of
from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.arguments import OperatorArguments
from vllm_megamoe.simulator.context import own_address
from vllm_megamoe.simulator.deviations import active_deviations
from vllm_megamoe.simulator.host_checks import check_call
from vllm_megamoe.simulator.kernel.journey import Journey
from vllm_megamoe.simulator.kernel.read import make_twin_buffer, overwrite_masked_ids, read_arguments
from vllm_megamoe.simulator.memory import memory_at


def npu_mega_moe(profile: Profile, a: OperatorArguments) -> tuple[Tensor, Tensor]:
    """y bf16 [T, H] and int32 [E], as the device would return them.

    Raises:
        RuntimeError: refused by the device's host checks, or nothing that the twin can compute.
        PeerError: where the device would hang.
    """
    address = own_address(a.context)
    memory = memory_at(address)
    if address and (memory is None or memory.freed):
        raise RuntimeError(f"[{profile.name} simulated] the buffer's memory was freed; the device would read elsewhere")
    if memory is None:
        check_call(profile, a)
        return _without_peers(a)
    session = Session(*make_twin_buffer(a, memory))
    wrong = active_deviations()
    try:
        check_call(profile, a)
        call = read_arguments(a, session.buffer, profile)
        overwrite_masked_ids(a)
        journey = Journey(call, session, memory, profile, wrong)
    except Exception as error:
        # The peers would spin; here they learn why.
        session.refuse(error)
        raise
    try:
        total, received = journey.run(session.meet(facts_of(call), journey.routes.counts, len(a.x)))
    except Exception:
        session.abandon()
        raise
    memory.calls += 1
    return total.to(torch.bfloat16), received.to(torch.int32)


def _without_peers(a: OperatorArguments) -> tuple[Tensor, Tensor]:
    """A dead buffer's call: it knows no peer and no memory, so nothing arrives. A device may also fail or hang here."""
    experts = a.moe_expert_num // a.ep_world_size
    return torch.zeros(a.x.shape, dtype=torch.bfloat16), torch.zeros(experts, dtype=torch.int32)
