"""Layers that are alike, as one line of the report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from vllm_megamoe.cli.report.schema import ActivationReport, GroupReport, PaddingReport, RowsReport, SharedReport
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.screen import kinds, layer_numbers, number_runs


def make_groups(plan: Plan, layers: Sequence[MoeFacts]) -> tuple[GroupReport, ...]:
    """Planned layers by their plans, refused ones by their facts; in the order of their first layer."""
    planned = {layer.facts.name for layer in plan.layers}
    groups = [(kind[0].facts.name, _planned(kind)) for kind in kinds(plan.layers)]
    groups += [(alike[0].name, _refused(alike, plan.engine.ep_size)) for alike in _alike(layers, planned)]
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
                mode=first.shared.mode, pieces=first.shared.pieces, reason=first.shared.reason
            ),
            "padding": _padding(layers),
            "rows": _rows(first),
        }
    )


def _refused(layers: list[MoeFacts], ep_size: int) -> GroupReport:
    numbers = number_runs(layer.index for layer in layers) or layers[0].name
    return _of_facts(layers[0], numbers, len(layers), ep_size)


def _of_facts(facts: MoeFacts, numbers: str, count: int, ep_size: int) -> GroupReport:
    return GroupReport(
        layers=numbers,
        count=count,
        draft=facts.draft,
        format=facts.experts_format,
        num_experts=facts.num_experts,
        experts_per_rank=facts.num_experts // ep_size,
        topk=facts.topk,
        hidden=facts.hidden,
        intermediate_hidden=facts.intermediate_hidden,
        runs="refused",
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
