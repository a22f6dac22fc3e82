"""What the layers of a communicator must have in common, chosen so that as many as possible fit.

Type of the dispatched rows, capacity and sizes are equal on all layers of a communicator (operator_readme.txt,
consistency constraints). Layers of different formats often have use cases in common that keep every number: INT4 and
INT8 experts both dispatch INT8, FP4 ones become A8W4-FP beside MXFP8. Draft (MTP) layers join the main model's
communicator where that costs them nothing; else they get one of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.use_case import Ways, allowed_ways
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

Communicator = Literal["main", "draft"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What one layer has been told about the others of its communicator.

    Attributes:
        communicator: `main`, or `draft` for draft layers with an operator configuration of their own.
        use_cases: those that suit all layers, which dispatch one type; None where there is no choice, or none suits.
        most_rows: of a call, None for as many as this layer can take.
        receive_factor: how many times the rows that may come the buffer is told (Limits.receive_factor_int4).
    """

    communicator: Communicator = "main"
    use_cases: tuple[UseCase, ...] | None = None
    most_rows: int | None = None
    receive_factor: int = 1


ALONE = Agreement()
"""A layer that needs not look at others."""


def _by_dispatch() -> tuple[tuple[UseCase, ...], ...]:
    found: dict[object, list[UseCase]] = {}
    for case, facts in USE_CASES.items():
        found.setdefault((facts.dispatch_quant_mode, facts.dispatched), []).append(case)
    return tuple(map(tuple, found.values()))


ALIKE = _by_dispatch()
"""The use cases that may share a communicator: those that dispatch rows of one type."""


def agree(layers: Sequence[MoeFacts], profile: Profile, options: Options, dtype: str) -> dict[str, Agreement]:
    """The use cases that each layer may choose from, by its name."""
    if options.use_case != "auto":
        return {layer.name: ALONE for layer in layers}
    main = [layer for layer in layers if not layer.draft] or list(layers)
    drafts = [layer for layer in layers if layer not in main]

    def ways(some: Sequence[MoeFacts]) -> list[Ways]:
        one_of_each = {layer.experts_format: layer for layer in some}.values()
        return [allowed_ways(layer, profile, options, dtype) for layer in one_of_each]

    first = common_use_cases(ways(main))
    own = common_use_cases(ways(drafts)) if drafts else None
    if drafts and first is not None and (own is None or _loss(ways(drafts), first) <= _loss(ways(drafts), own)):
        own = first
    found = {layer.name: Agreement("main", first) for layer in main}
    return found | {layer.name: Agreement("main", own) for layer in drafts}


def common_use_cases(ways: Sequence[Ways]) -> tuple[UseCase, ...] | None:
    """Use cases of one dispatched type that hold all layers: those of the layers' first choices where these agree, else
    with the smallest loss and the fewest bytes. None where no type has a way for all."""
    if not all(ways):
        return None
    natural = {next(group for group in ALIKE if next(iter(each)) in group) for each in ways}
    if len(natural) == 1:
        return next(iter(natural))
    fitting = [group for group in ALIKE if all(set(group) & set(each) for each in ways)]
    return min(fitting, key=lambda group: (_loss(ways, group), _bits(ways, group)), default=None)


def _first(each: Ways, group: Collection[UseCase]) -> UseCase | None:
    return next((case for case in each if case in group), None)


def _loss(ways: Sequence[Ways], group: Collection[UseCase]) -> float:
    """The largest of all layers; infinite where one has no way."""
    chosen = [(each, _first(each, group)) for each in ways]
    if any(case is None for _, case in chosen):
        return float("inf")
    losses = [each[case] for each, case in chosen if case is not None]
    return max((loss.most for loss in losses if loss is not None), default=0.0)


def _bits(ways: Sequence[Ways], group: Collection[UseCase]) -> int:
    return sum(USE_CASES[case].weight_bits for each in ways if (case := _first(each, group)) is not None)


def harmonised(
    agreed: Mapping[str, Agreement], rows: Mapping[str, int], factors: Mapping[str, int], drafts: Collection[str]
) -> dict[str, Agreement]:
    """The same with one capacity for each communicator.

    Args:
        agreed: by layer.
        rows: of a call, as each layer was planned by itself.
        factors: its receive factor.
        drafts: layers that need a communicator of their own.
    """
    found = {name: replace(each, communicator="draft") if name in drafts else each for name, each in agreed.items()}
    for communicator in ("main", "draft"):
        own = [name for name in rows if found[name].communicator == communicator]
        least, most = min((rows[n] for n in own), default=0), max((factors[n] for n in own), default=1)
        for name in own:
            if (rows[name], factors[name]) != (least, most):
                found[name] = replace(found[name], most_rows=least, receive_factor=most)
    return found
