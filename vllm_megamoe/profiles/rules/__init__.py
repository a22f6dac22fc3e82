"""What a product rejects and what it silently gets wrong: small rules over plain facts, in a fixed order."""

from dataclasses import replace

from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import call, creation, modes, weights
from vllm_megamoe.profiles.rules.rule import Rule

__all__ = ["RULES", "Rule", "broken_by_buffer", "broken_by_call"]

RULES: tuple[Rule, ...] = (
    creation.ep_size,
    creation.topology,
    creation.ranks_per_server,
    creation.capture,
    creation.one_buffer,
    creation.buffer_arguments,
    creation.created_experts,
    creation.experts_divide,
    call.max_tokens,
    creation.created_topk,
    creation.created_hidden,
    call.fp4_dispatch,
    modes.topk_weights_type,
    creation.alike,
    call.call_arguments,
    creation.experts,
    creation.experts_per_rank,
    call.rows,
    call.rows_full,
    creation.topk,
    creation.hidden,
    call.dispatch,
    call.x_dtype,
    call.x_scales,
    call.router_weights,
    call.mask,
    weights.use_case,
    weights.layout,
    weights.weight_format,
    weights.weight_scales,
    weights.bias,
    weights.intermediate,
    weights.shared_experts,
    weights.shared_type,
    weights.shared_use_case,
    weights.shared_layout,
    weights.shared_format,
    weights.shared_intermediate,
    modes.combine_quant,
    modes.comm_alg,
    modes.merging,
    modes.merging_quantised,
    modes.merging_tokens,
    modes.activation,
    modes.clamp,
    modes.clamp_situglu,
    modes.activation_params,
    call.receive_bound,
    call.receive_int4,
    call.window,
    call.rows_alike,
    call.receive_overflow,
)
"""All rules, in the order in which they are looked at."""


def broken_by_buffer(profile: Profile, buffer: BufferFacts) -> list[Broken]:
    """What creation of a buffer breaks; nothing in profile `none`."""
    return _broken("buffer", profile, buffer, None)


def broken_by_call(profile: Profile, buffer: BufferFacts, call: CallFacts) -> list[Broken]:
    """What a call breaks, over and above the creation of its buffer; nothing in profile `none`."""
    return _broken("call", profile, buffer, call)


def _broken(at: str, profile: Profile, buffer: BufferFacts, call: CallFacts | None) -> list[Broken]:
    if profile.product == "none":
        return []
    limits = limits_of(profile)
    found = ((rule, rule.check(profile, limits, buffer, call)) for rule in RULES if rule.at == at)
    where = f" with profile {profile.name}"
    return [replace(b, rule=rule.id, expected=b.expected + where) for rule, b in found if b is not None]
