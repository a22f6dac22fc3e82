"""How many routed experts there may be."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import API, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule

_FEWER = "This model has more experts than the operator takes here; take another profile."


@buffer_rule("created-experts")
def created_experts(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """What creation takes; the call is stricter."""
    cell = limits.created_experts
    if buffer.num_experts in cell.value:
        return None
    return Broken("num_experts", str(buffer.num_experts), str(cell.value), cell.source, _FEWER)


@buffer_rule("experts-divide")
def experts_divide(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Every rank holds as many experts as every other."""
    experts, ranks = buffer.num_experts, buffer.ep_world_size
    if experts >= ranks and experts % ranks == 0:
        return None
    source = f"{API}:431; {README}:574"
    remedy = "Choose an expert-parallel size that divides the number of experts."
    return Broken("num_experts", str(experts), f"a multiple of the {ranks} ranks, and as many at least", source, remedy)


@call_rule("experts")
def experts(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """All routed experts of the layer."""
    cell = limits.max_experts
    if buffer.num_experts <= cell.value:
        return None
    return Broken("num_experts", str(buffer.num_experts), f"at most {cell.value}", cell.source, _FEWER)


@call_rule("experts-per-rank")
def experts_per_rank(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Routed experts of one rank."""
    cell = limits.max_experts_per_rank
    if buffer.experts_per_rank <= cell.value:
        return None
    value = f"{buffer.num_experts} over {buffer.ep_world_size} ranks, {buffer.experts_per_rank} per rank"
    return Broken("num_experts", value, f"at most {cell.value} per rank", cell.source, "Use more ranks.")
