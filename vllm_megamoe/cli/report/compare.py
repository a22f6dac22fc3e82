"""Several profiles for one model."""

import difflib
from dataclasses import replace

from vllm_megamoe.cli.model.facts import Model
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.report.schema import ComparisonReport
from vllm_megamoe.cli.request import Request
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import PROFILE_NAMES


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
        raise ConfigError(f"--compare names no profile; wanted some of {', '.join(PROFILE_NAMES)}, or all.")
    return names


def compare(model: Model, request: Request, names: tuple[str, ...]) -> ComparisonReport:
    """One report per profile; all other arguments stay."""
    reports = []
    for name in names:
        options = {**request.options, "profile": name}
        if not name.startswith("950"):
            # Only 950 has topologies.
            options.pop("topology", None)
        reports.append(make_report(model, replace(request, options=options))[0])
    return ComparisonReport(model=model.name, profiles=tuple(reports))
