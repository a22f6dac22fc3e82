"""Draw what a report says: memory and wire bytes over the EP size, or errors over the layers.

matplotlib is an extra of this package, imported only here.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_megamoe.errors import ConfigError

if TYPE_CHECKING:
    from vllm_megamoe.cli.checkpoint.schema import CheckReport
    from vllm_megamoe.cli.report.fit_schema import SearchReport
    from vllm_megamoe.cli.report.schema import CurvePoint, PlanReport

SUFFIXES = (".png", ".svg", ".pdf")
INSTALL = "pip install 'vllm-megamoe[plot]'"
_GIB = 1 << 30


def check_plot(file: Path) -> None:
    """Reject a file that cannot be drawn to before anything is planned.

    Raises:
        ConfigError: another suffix, no such folder, or no matplotlib.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {file}: expected a name that ends in {', '.join(SUFFIXES)}.")
    if not file.parent.is_dir():
        raise ConfigError(f"--plot {file}: no folder {file.parent}; make it first.")
    _figure_class()


def draw(report: "PlanReport", file: Path) -> None:
    """Draw the report's curve.

    Raises:
        ConfigError: when there is no legal EP size, or the file cannot be written.
    """
    if not report.curve:
        raise ConfigError(f"--plot {file}: nothing to draw, no EP size of this model can be planned for.")
    figure = _figure_class()(figsize=(11, 4.5), layout="constrained")
    memory, wire = figure.subplots(1, 2)
    sizes = [str(point.ep_size) for point in report.curve]
    _draw_memory(memory, sizes, report.curve)
    _draw_wire(wire, sizes, report.curve)
    figure.suptitle(f"{report.model}, profile {report.profile}")
    _save(figure, file)


def draw_errors(report: "CheckReport", file: Path) -> None:
    """Draw the errors of each layer beside what its formats explain.

    Raises:
        ConfigError: nothing was run, or the file cannot be written.
    """
    if not report.layers:
        raise ConfigError(f"--plot {file}: nothing to draw, no layer was run.")
    figure = _figure_class()(figsize=(11, 4.5), layout="constrained")
    names = [str(layer.layer) + ("*" if layer.excess else "") for layer in report.layers]
    for axes, what in zip(figure.subplots(1, 2), ("weight", "output"), strict=True):
        for key, mark in (("rel_err", "o"), ("bound", "_")):
            axes.plot(names, [getattr(layer, f"{what}_{key}") for layer in report.layers], mark, label=f"{what} {key}")
        axes.set(title=f"{what} error, rms over rms", xlabel="layer (* beyond its bound)", ylim=(0, None))
        axes.legend()
    figure.suptitle(f"{report.model}, against {report.against}")
    _save(figure, file)


def draw_search(report: "SearchReport", file: Path) -> None:
    """Draw what each split can reach: tokens a second at most over the least time of a decode step, a line for each.

    Raises:
        ConfigError: no split holds a sequence, or the file cannot be written.
    """
    drawn = [row for row in report.rows if row.curve]
    if not drawn:
        raise ConfigError(
            f"--plot {file}: nothing to draw, no split holds a sequence of {report.max_model_len} tokens."
        )
    figure = _figure_class()(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for row in drawn:
        times = [seconds * 1e3 for _, seconds in row.curve]
        rates = [sequences / seconds for sequences, seconds in row.curve]
        name = f"tp {row.tensor_parallel} x dp {row.data_parallel}"
        axes.plot(times, rates, "o-" if row.meets else "x--", label=name, alpha=1.0 if row.meets else 0.5)
    if report.target_ms is not None:
        axes.axvline(report.target_ms, linestyle=":", color="black", label=f"target {report.target_ms:g} ms")
    where = f"{report.devices} x {report.device.name}, {report.max_model_len} tokens a sequence"
    axes.set(
        title=f"Bounds of {report.model} on {where}",
        xlabel="decode step, ms at least",
        ylabel="tokens a second, at most",
        xlim=(0, None),
        ylim=(0, None),
    )
    axes.legend()
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file)
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written ({error.strerror}).") from error


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"--plot needs matplotlib, which is not installed here: {INSTALL}") from error
    return Figure


def _draw_memory(axes: Any, sizes: list[str], curve: "tuple[CurvePoint, ...]") -> None:
    bottom = [0.0] * len(sizes)
    for name in ("weights", "window", "workspace"):
        values = [getattr(point.memory, name) / _GIB for point in curve]
        axes.bar(sizes, values, bottom=bottom, label=name)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    axes.set(title="memory of a rank", xlabel="EP size", ylabel="GiB")
    axes.legend()


def _draw_wire(axes: Any, sizes: list[str], curve: "tuple[CurvePoint, ...]") -> None:
    lines: dict[str, list[int | None]] = {
        "dispatch": [point.wire.dispatch_without_router_weights for point in curve],
        "combine": [point.wire.combine_without_dedup for point in curve],
        "combine, one row per rank": [point.wire.combine_with_dedup for point in curve],
        "dispatch with router weights": [point.wire.dispatch_with_router_weights for point in curve],
    }
    for name, values in lines.items():
        known = [value for value in values if value is not None]
        if len(known) == len(sizes):
            axes.plot(sizes, [value / 1024 for value in known], marker="o", label=name)
    axes.set(title="one token in one MoE layer", xlabel="EP size", ylabel="KiB", ylim=(0, None))
    axes.legend()
