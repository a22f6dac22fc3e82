"""One model over many profiles, and over the EP sizes that one profile takes."""

import difflib
from collections.abc import Sequence
from dataclasses import replace

from vllm_megamoe.cli.model import ModelFiles
from vllm_megamoe.cli.report.groups import memory_of, wire_of
from vllm_megamoe.cli.report.make import at_ep_size, make_report
from vllm_megamoe.cli.report.schema import ComparisonReport, CurvePoint
from vllm_megamoe.cli.request import Request
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.plan import draft_plan, plan_of
from vllm_megamoe.profiles.profile import PROFILE_NAMES


def make_curve(layers: Sequence[MoeFacts], plan: Plan, sizes: tuple[int, ...]) -> tuple[CurvePoint, ...]:
    """One point for each size at which something can be planned; options and tokens stay."""
    points = []
    for size in sizes:
        there = plan_of(draft_plan(at_ep_size(plan.engine, size), layers, plan.options))
        memory, wire = memory_of(there), wire_of(there)
        if memory is not None and wire is not None:
            points.append(CurvePoint(ep_size=size, memory=memory, wire=wire))
    return tuple(points)


def read_profiles(text: str) -> tuple[str, ...]:
    """Names with commas, or `all`.

    Raises:
        ConfigError: for a name that is none.
    """
    if text.strip() == "all":
        return PROFILE_NAMES
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in PROFILE_NAMES:
            near = difflib.get_close_matches(name, PROFILE_NAMES, n=1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise ConfigError(f"--compare: {name!r} is no profile{meant} Profiles: {', '.join(PROFILE_NAMES)}, or all.")
    if not names:
        raise ConfigError(f"--compare names no profile; expected some of {', '.join(PROFILE_NAMES)}, or all.")
    return names


def compare(files: ModelFiles, request: Request, names: tuple[str, ...]) -> ComparisonReport:
    """One report per profile; all other arguments stay."""
    reports = []
    for name in names:
        options = {**request.options, "profile": name}
        if not name.startswith("950"):
            # Only 950 has topologies.
            options.pop("topology", None)
        reports.append(make_report(files, replace(request, options=options))[0])
    return ComparisonReport(model=files.name, profiles=tuple(reports))
