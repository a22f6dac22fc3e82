"""A plan as numbers for a report: layers that are alike as one line, memory of a rank, bytes on the wire.

Also which sizes of the communicator a profile takes, and which one is planned for where the user names none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from vllm_megamoe.cli.report.schema import (
    ActivationReport,
    GroupReport,
    MemoryReport,
    PaddingReport,
    RowsReport,
    SharedReport,
    WireReport,
)
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.screen import kinds, layer_numbers, number_runs
from vllm_megamoe.profiles import limits
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.wire import wire_bytes_per_token


def memory_of(plan: Plan) -> MemoryReport | None:
    """What the operator takes on a rank; of a pipeline the share of its largest stage. None for an empty plan."""
    if not plan.layers:
        return None
    stages = plan.engine.pipeline_parallel
    weights = sorted((layer.weight_bytes for layer in plan.layers), reverse=True)
    return MemoryReport(
        weights=sum(weights[: -(-len(weights) // stages)]),
        window=sum(plan.window_bytes.values()),
        workspace=max(layer.capacity.workspace_bytes for layer in plan.layers),
    )


def wire_of(plan: Plan) -> WireReport | None:
    """What a token of the first layer moves. None for an empty plan."""
    if not plan.layers:
        return None
    first = plan.layers[0]
    wire = wire_bytes_per_token(plan.profile, first.buffer, use_case=first.use_case.value)
    expected = wire.combine_merged_expected
    merged = first.buffer.combine_comm_mode == 1 and expected is not None
    return WireReport(
        dispatch=wire.dispatch,
        combine=round(expected or 0) if merged else wire.combine,
        dispatch_without_router_weights=wire.dispatch_without_weights,
        dispatch_with_router_weights=wire.dispatch_with_weights,
        combine_without_dedup=wire.combine,
        combine_with_dedup=None if expected is None else round(expected),
        combine_with_dedup_worst=wire.combine_merged_worst,
        remote_share=round(wire.remote_share, 4),
    )


_USUAL = 8
"""Ranks of one host, the size that is chosen where none was asked for."""


def legal_ep_sizes(layers: Iterable[MoeFacts], profile: Profile) -> tuple[int, ...]:
    """Sizes that divide the experts of every layer and stay within the profile's limits, ascending."""
    return limits.legal_ep_sizes(limits.limits_of(profile), (layer.physical_experts for layer in layers))


def usual_size(legal: tuple[int, ...], profile: Profile) -> int:
    """The size to plan for where the user names none: 1 without a product, else the largest legal one up to 8."""
    if profile.product == "none":
        return 1
    return max((size for size in legal if size <= _USUAL), default=min(legal, default=_USUAL))


def make_groups(plan: Plan, layers: Sequence[MoeFacts]) -> tuple[GroupReport, ...]:
    """Planned layers by their plans, rejected ones by their facts; in the order of their first layer."""
    planned = {layer.facts.name for layer in plan.layers}
    groups = [(kind[0].facts.name, _planned(kind)) for kind in kinds(plan.layers)]
    groups += [(alike[0].name, _rejected(alike, plan.engine.ep_size)) for alike in _alike(layers, planned)]
    order = {layer.name: place for place, layer in enumerate(layers)}
    return tuple(group for _, group in sorted(groups, key=lambda item: order[item[0]]))


def _alike(layers: Iterable[MoeFacts], planned: set[str]) -> Iterator[list[MoeFacts]]:
    found: dict[MoeFacts, list[MoeFacts]] = {}
    for layer in layers:
        if layer.name not in planned:
            found.setdefault(replace(layer, name="", index=-1), []).append(layer)
    yield from found.values()


def _planned(layers: list[LayerPlan]) -> GroupReport:
    first = layers[0]
    return _of_facts(first.facts, layer_numbers(layers), len(layers), first.ep_size).model_copy(
        update={
            "runs": "mega_moe",
            "use_case": first.use_case.value,
            "loss": first.loss,
            "activation": _activation(first),
            "shared_experts": SharedReport(
                mode=first.shared.mode,
                pieces=first.shared.pieces,
                reason=first.shared.reason,
                use_case=first.shared.use_case and first.shared.use_case.value,
            ),
            "communicator": first.communicator,
            "padding": _padding(layers),
            "rows": _rows(first),
        }
    )


def _rejected(layers: list[MoeFacts], ep_size: int) -> GroupReport:
    numbers = number_runs(layer.index for layer in layers) or layers[0].name
    return _of_facts(layers[0], numbers, len(layers), ep_size)


def _of_facts(facts: MoeFacts, numbers: str, count: int, ep_size: int) -> GroupReport:
    return GroupReport(
        layers=numbers,
        count=count,
        draft=facts.draft,
        format=str(facts.experts_format),
        num_experts=facts.num_experts,
        experts_per_rank=facts.physical_experts // ep_size,
        topk=facts.topk,
        hidden=facts.hidden,
        intermediate_hidden=facts.intermediate_hidden,
        runs="rejected",
    )


def _activation(layer: LayerPlan) -> ActivationReport:
    plan = layer.activation
    return ActivationReport(name=plan.name, clamp=plan.clamp, params=dict(plan.params), text=str(plan))


def _padding(layers: list[LayerPlan]) -> PaddingReport | None:
    first, padding = layers[0], layers[0].padding
    if not padding:
        return None
    return PaddingReport(
        hidden=padding.hidden,
        intermediate_hidden=padding.intermediate_hidden,
        overhead=round(padding.overhead, 4),
        bytes_per_rank=first.padding_bytes * len(layers),
    )


def _rows(layer: LayerPlan) -> RowsReport:
    capacity = layer.capacity
    return RowsReport(
        per_step=capacity.rows,
        per_call=capacity.chunk,
        calls=capacity.calls,
        padded_to=capacity.pad,
        max_recv_token_num=capacity.max_recv_token_num,
        receive_bound=capacity.receive_bound,
    )
