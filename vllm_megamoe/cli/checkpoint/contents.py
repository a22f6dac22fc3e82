"""What a checkpoint holds, as a report: formats, sizes, scale ranges, and what each product runs it as."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.headers import Entry
from vllm_megamoe.checkpoint.layers import FUSED_PARTS, LayerTensors
from vllm_megamoe.checkpoint.reading import Files
from vllm_megamoe.cli.checkpoint.opened import Opened, progress
from vllm_megamoe.cli.checkpoint.schema import (
    LayerReport,
    PartReport,
    RunReport,
    ScaleReport,
    SharedReport,
    ShowReport,
)
from vllm_megamoe.numerics.mx import e8m0_value
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_of, violations_of
from vllm_megamoe.profiles.limits import legal_ep_sizes, limits_of
from vllm_megamoe.profiles.profile import PROFILE_NAMES, find_profile

_SIGNED = ("scales",)
"""GPTQ's scales may be negative: AutoRound writes such ones to use the code -8."""


def make_report(opened: Opened, requant: str = "strict", headers_only: bool = False) -> ShowReport:
    """Look at every layer of an opened checkpoint.

    Args:
        requant: `allow` lets products take lossy conversions.
        headers_only: leave the scales unread.
    """
    problems = [str(problem) for problem in opened.survey.problems]
    runs = _runs(opened.layers, requant)
    layers = []
    for layer in progress(opened.layers, len(opened.layers), "layers"):
        tensors = opened.survey.layers[layer.name]
        scales: tuple[ScaleReport, ...] = ()
        if not headers_only:
            scales, wrong = _scales(opened.weights, tensors)
            problems += wrong
        layers.append(_layer(layer, tensors, scales, runs[layer.name]))
    entries = opened.survey.headers.entries.values()
    return ShowReport(
        model=opened.model.name,
        architecture=opened.model.facts.architecture,
        files=len({entry.file for entry in entries}),
        bytes=sum(entry.nbytes for entry in entries),
        layers=tuple(layers),
        problems=tuple(problems),
        notes=tuple(opened.survey.notes),
    )


def _layer(
    layer: MoeFacts, tensors: LayerTensors, scales: tuple[ScaleReport, ...], runs: tuple[RunReport, ...]
) -> LayerReport:
    total = sum(entry.nbytes for entry in tensors.routed)
    return LayerReport(
        name=layer.name,
        layer=layer.index,
        draft=layer.draft,
        format=layer.experts_format.name,
        label=layer.experts_format.facts.label,
        naming=tensors.style,
        num_experts=layer.num_experts,
        hidden=layer.hidden,
        intermediate_hidden=layer.intermediate_hidden,
        bytes=total,
        bytes_per_expert=total // layer.num_experts,
        parts=tuple(_parts(tensors)),
        scales=scales,
        shared=_shared(layer, tensors),
        runs=runs,
    )


def _shared(layer: MoeFacts, tensors: LayerTensors) -> SharedReport | None:
    if layer.shared is None or not tensors.shared:
        return None
    held = sum(entry.nbytes for parts in tensors.shared.values() for entry in parts.values())
    name, width = layer.shared.experts_format.name, layer.shared.intermediate_hidden
    return SharedReport(format=name, intermediate_hidden=width, bytes=held)


def _by_part(tensors: LayerTensors) -> Mapping[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for expert in tensors.experts.values():
        for parts in expert.values():
            for name, entry in parts.items():
                found[name].append(entry)
    for parts in tensors.stacked.values():
        for name, entry in parts.items():
            found[name].append(entry)
    for name, entry in tensors.fused.items():
        split = FUSED_PARTS.match(name)
        found[name if split is None else split["part"].strip("_.") or "weight"].append(entry)
    return found


def _parts(tensors: LayerTensors) -> Iterator[PartReport]:
    for name, entries in _by_part(tensors).items():
        dtype = ", ".join(Counter(entry.dtype for entry in entries))
        yield PartReport(name=name, dtype=dtype, tensors=len(entries), bytes=sum(entry.nbytes for entry in entries))


def _scales(files: Files, tensors: LayerTensors) -> tuple[tuple[ScaleReport, ...], list[str]]:
    """The ranges of every part that scales weights, and sentences about scales that mean no number."""
    found, wrong = [], []
    for name, entries in _by_part(tensors).items():
        if "scale" not in name or "bias" in name or "input" in name:
            continue
        least, most = (math.inf, ""), (-math.inf, "")
        for entry in entries:
            values = _values(files.tensor(entry))
            if sentence := _unlawful(entry, values, name in _SIGNED):
                wrong.append(sentence)
                continue
            low, high = (float(number) for number in values.aminmax())
            least, most = min(least, (low, entry.name)), max(most, (high, entry.name))
        if most[1]:
            found.append(ScaleReport(part=name, least=least[0], most=most[0], least_in=least[1], most_in=most[1]))
    return tuple(found), wrong


def _values(scale: Tensor) -> Tensor:
    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return e8m0_value(scale.view(torch.uint8))
    return scale.float()


def _unlawful(entry: Entry, values: Tensor, signed: bool) -> str:
    bad = ~torch.isfinite(values) | ((values == 0) if signed else (values <= 0))
    if not bool(bad.any()):
        return ""
    at = bad.nonzero()[0].tolist()
    return (
        f"{entry.file}: {entry.name} is {float(values[tuple(at)])!r} at {at} ({int(bad.sum())} such values); expected "
        f"finite scales {'other than 0' if signed else 'above 0'}. Copy the checkpoint anew, or quantise again."
    )


def _runs(layers: Sequence[MoeFacts], requant: str) -> Mapping[str, tuple[RunReport, ...]]:
    """By the plan's own functions, decoder layers together; a draft layer is planned by itself."""
    found: dict[str, tuple[RunReport, ...]] = {layer.name: () for layer in layers}
    groups = [[layer for layer in layers if not layer.draft], *([layer] for layer in layers if layer.draft)]
    for name in PROFILE_NAMES:
        for group in filter(None, groups):
            for layer, run in zip(group, _on(name, group, requant), strict=True):
                found[layer.name] += (run,)
    return found


def _on(profile: str, layers: Sequence[MoeFacts], requant: str) -> Iterable[RunReport]:
    options = Options.parse({"megamoe": {"profile": profile, "requant": requant}})
    sizes = legal_ep_sizes(limits_of(find_profile(profile)), (layer.num_experts for layer in layers))
    size = 1 if profile == "none" else max((n for n in sizes if n <= 8), default=min(sizes, default=1))
    engine = EngineFacts("bfloat16", data_parallel=size, expert_parallel=size > 1)
    verdict = draft_plan(engine, layers, options)
    planned = {layer.facts.name: layer for layer in plan_of(verdict).layers}
    for layer in layers:
        mine = [v for v in violations_of(verdict) if v.where in (layer.name, "use_case")] or violations_of(verdict)
        plan = planned.get(layer.name)
        yield RunReport(
            profile=profile,
            use_case=None if plan is None else plan.use_case.value,
            loss="" if plan is None else plan.loss,
            refused=f"{mine[0].got}; expected {mine[0].expected}" if mine else "",
        )
