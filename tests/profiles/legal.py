"""Legal facts of each profile, and how a test changes them."""

from dataclasses import dataclass, field, replace
from typing import Any

from vllm_megamoe.profiles.facts import BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile, find_profile

A2_91, A3_91, A2_92, A3_92 = "a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"
N91, N92, URMA = "950@9.1", "950@9.2", "950@9.2 urma"
OLD = (A2_91, A3_91)
NEW = (A2_92, A3_92)
A2_A3 = (*OLD, *NEW)
NINES = (N92, URMA)
ALL = (*A2_A3, N91, *NINES)

E4M3, E5M2, FP4 = "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT4_E2M1"
ND, NZ, C0_32 = "ND", "FRACTAL_NZ", "FRACTAL_NZ_C0_32"


@dataclass(frozen=True)
class Change:
    """What differs from the legal facts: fields of the buffer, the call, its routed and its shared experts."""

    buffer: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    routed: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] | None = None
    earlier: dict[str, Any] | None = None
    topology: str = ""

    def __or__(self, other: "Change") -> "Change":
        return Change(
            self.buffer | other.buffer,
            self.call | other.call,
            self.routed | other.routed,
            other.shared if self.shared is None else self.shared | (other.shared or {}),
            self.earlier if other.earlier is None else other.earlier,
            self.topology or other.topology,
        )


def buffer(**fields: Any) -> Change:
    return Change(buffer=fields)


def call(**fields: Any) -> Change:
    return Change(call=fields)


def routed(**fields: Any) -> Change:
    return Change(routed=fields)


def shared(**fields: Any) -> Change:
    """Shared experts, by default two that are like the routed ones of a 950."""
    return Change(shared=fields)


def earlier(**fields: Any) -> Change:
    """An older buffer on the communicator, like this one but for these fields."""
    return Change(earlier=fields)


def profile_of(key: str) -> Profile:
    name, _, topology = key.partition(" ")
    return find_profile(name, topology or "auto")


def facts(key: str, change: Change) -> tuple[Profile, BufferFacts, CallFacts]:
    """A legal buffer and call of the profile, changed."""
    name, _, topology = key.partition(" ")
    made, called, experts = _legal(name)
    one = replace(made, **change.buffer)
    if change.earlier is not None:
        one = replace(one, earlier=replace(one, **change.earlier))
    weights = replace(experts, **change.routed)
    others = None if change.shared is None else replace(experts, **{"count": 2} | change.shared)
    two = replace(called, routed=weights, shared=others, **change.call)
    urma = change.topology == "urma" and name.startswith("950")
    return find_profile(name, "urma" if urma else topology or "auto"), one, two


def _legal(name: str) -> tuple[BufferFacts, CallFacts, WeightFacts]:
    if not name.startswith("950"):
        made = BufferFacts(ep_world_size=2, num_experts=8, num_max_tokens_per_rank=64, num_topk=2, hidden=1024)
        experts = WeightFacts(element1="BF16", element2="BF16", count=4, intermediate_hidden=1024)
        return made, CallFacts(rows=5, routed=experts, ccl_buffer_size=400 << 20), experts
    old = name == N91
    made = BufferFacts(
        ep_world_size=2,
        num_experts=16 if old else 8,
        num_max_tokens_per_rank=64,
        num_topk=6 if old else 2,
        hidden=4096 if old else 1024,
        dispatch_quant_mode=4,
        dispatch_quant_out_dtype=E4M3,
    )
    experts = WeightFacts(
        element1=E4M3,
        element2=E4M3,
        stacked=old,
        count=8 if old else 4,
        intermediate_hidden=512,
        has_scales=True,
    )
    return made, CallFacts(rows=64 if old else 5, routed=experts), experts
