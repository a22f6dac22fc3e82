"""Answer a `plan`: read, plan, draw, show."""

from dataclasses import dataclass
from pathlib import Path

from vllm_megamoe.cli.balance import Balance
from vllm_megamoe.cli.model import ModelFiles, find_path, read_files
from vllm_megamoe.cli.plot import check_plot, draw, draw_search
from vllm_megamoe.cli.receive import show_receive
from vllm_megamoe.cli.report.compare import compare, make_curve, read_profiles
from vllm_megamoe.cli.report.fit_schema import SearchReport
from vllm_megamoe.cli.report.make import make_report
from vllm_megamoe.cli.report.schema import ComparisonReport, PlanReport
from vllm_megamoe.cli.request import Request, Target
from vllm_megamoe.cli.search import search
from vllm_megamoe.cli.serve_line.read import read_line
from vllm_megamoe.cli.show.fit import explained, show_search
from vllm_megamoe.cli.show.plan import show_comparison, show_plan
from vllm_megamoe.cli.show.rows import print_whole
from vllm_megamoe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Asked:
    """All that `plan` was given.

    Attributes:
        model: MODEL, None where only a command line was given.
        request: what to plan.
        as_json: print JSON.
        compare: profiles to compare, as text.
        plot: file to draw to.
        target: of a search of splits, None for a plan.
        recv: show the receive capacity in place of the plan.
        balance: the placement to write before, None for none.
    """

    model: str | None
    request: Request
    as_json: bool = False
    compare: str | None = None
    plot: Path | None = None
    target: Target | None = None
    recv: bool = False
    balance: Balance | None = None


def answer(asked: Asked) -> bool:
    """Print the answer; whether the plan holds.

    Raises:
        ConfigError: for usage or input that nothing can be planned from.
    """
    if asked.plot is not None and asked.compare is not None:
        raise ConfigError("--plot draws one profile; drop --compare, or plot each profile by itself.")
    if asked.recv and (asked.plot is not None or asked.compare is not None or asked.target is not None):
        raise ConfigError("--recv is an answer of its own; drop --compare, --plot and --search.")
    if asked.plot is not None:
        check_plot(asked.plot)
    files = read_files(_where(asked))
    if asked.target is not None:
        return _search(files, asked, asked.target)
    if asked.compare is not None:
        comparison = compare(files, asked.request, read_profiles(asked.compare))
        _print(comparison) if asked.as_json else show_comparison(comparison)
        return any(plan.holds for plan in comparison.profiles)
    request, told = asked.request, ""
    if asked.balance is not None:
        request, told = asked.balance.write(files, request)
    report, plan, model = make_report(files, request)
    if asked.recv:
        show_receive(plan, as_json=asked.as_json)
        return report.holds
    if asked.plot is not None and plan is not None:
        report = report.model_copy(update={"curve": make_curve(model.layers, plan, report.ep_sizes)})
        draw(report, asked.plot)
    if asked.request.place.explain and report.bounds and report.fit and report.fit.device:
        report = report.model_copy(update={"explained": explained(report.bounds, report.fit.device)})
    if asked.as_json:
        _print(report)
    else:
        show_plan(report)
        print_whole(told) if told else None
    return report.holds


def _search(files: ModelFiles, asked: Asked, target: Target) -> bool:
    if asked.compare is not None:
        raise ConfigError("--search looks at one profile; drop --compare, or search under each profile by itself.")
    found = search(files, asked.request, target)
    if asked.plot is not None:
        draw_search(found, asked.plot)
    _print(found) if asked.as_json else show_search(found)
    return any(row.meets for row in found.rows)


def _print(report: PlanReport | ComparisonReport | SearchReport) -> None:
    print_whole(report.model_dump_json(indent=2))


def _where(asked: Asked) -> str:
    if asked.model is not None:
        return asked.model
    if asked.request.line is None:
        raise ConfigError("No MODEL; expected a checkpoint's folder or its config.json, or --from with a command line.")
    named = read_line(asked.request.line).model
    if find_path(named) is None:
        raise ConfigError(
            f"The command line serves {named!r}, which is no folder here; give its config as MODEL too: "
            'vllm-megamoe plan CONFIG --from "..."'
        )
    return named
