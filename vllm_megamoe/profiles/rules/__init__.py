"""What a product refuses and what it silently gets wrong: small rules over plain facts, in a fixed order."""

from dataclasses import replace

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import (
    activation,
    buffer_arguments,
    combine,
    communicator,
    dispatch,
    experts,
    hidden,
    inputs,
    intermediate,
    ranks,
    receive,
    shared,
    tokens,
    topk,
    weights,
    window,
)
from vllm_megamoe.profiles.rules.rule import Rule

__all__ = ["RULES", "Rule", "broken_by_buffer", "broken_by_call"]

RULES: tuple[Rule, ...] = (
    ranks.ep_size,
    ranks.topology,
    ranks.ranks_per_server,
    communicator.capture,
    communicator.one_buffer,
    buffer_arguments.buffer_arguments,
    experts.created_experts,
    experts.experts_divide,
    tokens.max_tokens,
    topk.created_topk,
    hidden.created_hidden,
    dispatch.fp4_dispatch,
    combine.topk_weights_type,
    communicator.alike,
    inputs.call_arguments,
    experts.experts,
    experts.experts_per_rank,
    tokens.rows,
    tokens.rows_full,
    topk.topk,
    hidden.hidden,
    dispatch.dispatch,
    inputs.x_dtype,
    inputs.x_scales,
    inputs.router_weights,
    inputs.mask,
    weights.use_case,
    weights.layout,
    weights.weight_format,
    weights.weight_scales,
    weights.bias,
    intermediate.intermediate,
    shared.shared_experts,
    shared.shared_type,
    shared.shared_use_case,
    shared.shared_layout,
    shared.shared_format,
    intermediate.shared_intermediate,
    combine.combine_quant,
    combine.comm_alg,
    combine.merging,
    combine.merging_quantised,
    combine.merging_tokens,
    activation.activation,
    activation.clamp,
    activation.clamp_situglu,
    activation.activation_params,
    receive.receive_bound,
    receive.receive_int4,
    window.window,
    tokens.rows_alike,
    receive.receive_overflow,
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
    return [replace(b, rule=rule.id, wanted=b.wanted + where) for rule, b in found if b is not None]
