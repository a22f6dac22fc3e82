"""The communicator's size and shape."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import ARCH35_92, README, WRAPPER_91
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule


@buffer_rule("ep-size")
def ep_size(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """How many ranks there may be; a single one exists in profile `none` only."""
    if buffer.ep_world_size in limits.ep_sizes.value:
        return None
    remedy = "Choose another expert-parallel size (tensor x data parallel ranks)."
    if buffer.ep_world_size == 1:
        remedy = "Use two ranks or more; one rank alone exists in profile 'none' only."
    cell = limits.ep_sizes
    return Broken("ep_world_size", str(buffer.ep_world_size), str(cell.value), cell.source, remedy)


@buffer_rule("topology")
def topology(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """9.1.0 of 950 knows one UB domain; URMA came later."""
    if profile.name != "950@9.1" or profile.topology != "urma":
        return None
    source = f"{WRAPPER_91} (no topo_type)"
    return Broken("topology", "'urma'", "'mte'", source, "Keep the communicator inside one UB domain.")


@buffer_rule("ranks-per-server")
def ranks_per_server(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Across super-nodes the ranks form servers of one size."""
    found = buffer.rank_num_per_server
    if profile.topology != "urma" or not found or (found >= 2 and buffer.ep_world_size % found == 0):
        return None
    wanted = f"at least 2, and a divisor of the {buffer.ep_world_size} ranks, on URMA"
    source = f"{README}:515; {ARCH35_92} (rankNumPerServer)"
    return Broken("rank_num_per_server", str(found), wanted, source, "Choose ranks that fill whole servers.")
