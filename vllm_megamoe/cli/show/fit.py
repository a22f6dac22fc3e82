"""Memory and bounds on the terminal: rows of a plan's table, the explanation, and a search."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.report.fit_schema import BoundReport, BoundsReport, DeviceReport, FitReport, SearchReport
from vllm_megamoe.cli.show.rows import Row, make_console, size

_KIB = 1 << 10


def fit_rows(fit: FitReport) -> Iterator[Row]:
    """The whole model, a rank's memory, what is left for the cache."""
    stored = f", planned as {fit.stored_as}" if fit.stored_as else ""
    about = "about " if fit.gaps else ""
    yield "model", f"{about}{_billions(fit.parameters)} parameters{stored}: {_largest(fit.parameter_parts)}"
    yield "weights of a rank", f"{size(fit.weights_total)}: {_largest_bytes(fit.weights)}"
    beside = fit.window + fit.workspace + fit.communicators + fit.step
    if fit.device is None or fit.left is None or fit.budget is None:
        yield "cache", f"{_per_token(fit)}; name a device (--device, --device-memory) to see what fits"
        return
    device = fit.device
    yield "device", f"{device.name}, {device.memory_gib:g} GiB, {fit.utilization:g} of it: {size(fit.budget)}"
    yield "  beside weights", f"{size(beside)} at least: window, workspace, communicators, rows of a step"
    if fit.left < 0:
        yield "  left for the cache", f"nothing: {size(-fit.left)} are missing"
        return
    yield "  left for the cache", f"{size(fit.left)}; {_per_token(fit)}"
    if fit.sequences is None:
        return
    many = "sequence" if fit.sequences == 1 else "sequences"
    yield "  holds", f"{fit.sequences} {many} of {fit.max_model_len} tokens, over all ranks"


def _per_token(fit: FitReport) -> str:
    if not fit.sequence:
        return "what a sequence keeps is not known from this config"
    token = fit.sequence / max(1, fit.max_model_len)
    return f"{token / _KIB:.1f} KiB a token and rank in {fit.cache_bits} bits (at {fit.max_model_len} tokens)"


def _billions(number: int) -> str:
    for name, unit in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= unit:
            return f"{number / unit:.2f} {name}" if name == "T" else f"{number / unit:.1f} {name}"
    return str(number)


def _largest(parts: dict[str, int]) -> str:
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {_billions(number)}" for name, number in ordered[:4] if number)


def _largest_bytes(parts: dict[str, int]) -> str:
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size(number)}" for name, number in ordered[:4] if number)


def bound_rows(bounds: BoundsReport) -> Iterator[Row]:
    """The least time of a decode step and of a step of prompt tokens."""
    router = "an even router" if not bounds.router_skew else f"a router of skew {bounds.router_skew:g}"
    yield "at best, no estimate", f"bounds for {router}; --explain shows how they come about"
    if bounds.decode is not None:
        what = f"{bounds.decode.sequences} sequences of {bounds.decode.context} tokens a data-parallel rank"
        yield "  decode step", f"{_bound(bounds.decode)}: {what}"
    yield "  prefill step", f"{_bound(bounds.prefill)}: {bounds.prefill.tokens} tokens a data-parallel rank"


def _bound(bound: BoundReport) -> str:
    if not bound.by:
        return "not known: the device's figures are missing"
    text = f"{bound.seconds * 1e3:.2f} ms at least ({bound.by}), {bound.tokens_per_second:,.0f} tokens/s at most"
    return f"{text}, without {', '.join(bound.unknown)} products, whose peak is not known" if bound.unknown else text


_HOW = (
    "A step takes at least as long as the slowest of three things on the fullest rank, even if all else overlaps; "
    "kernels, launches and waiting come on top. Memory: bytes of weights and cache that are read, of the experts those "
    "that some token is expected to go to, over the memory's bandwidth. Compute: twice the multiply-adds over the peak "
    "of their type. Wire: dispatch, combine and the tensor-parallel sums in one direction over the link."
)


def explained(bounds: BoundsReport, device: DeviceReport) -> tuple[str, ...]:
    """How the bounds come about, with the numbers that go in."""
    skew = f"{bounds.router_skew:g}"
    lines = [
        f"{_HOW} Router: the i-th expert is as popular as i ** -{skew}; experts are dealt out, the popular ones first."
    ]
    for name, bound in (("decode", bounds.decode), ("prefill", bounds.prefill)):
        if bound is not None:
            lines.append(f"{name}: {'; '.join(_terms(bound, device))}")
    lines += [f"{name}: {source}" for name, source in device.sources.items()]
    return tuple(lines)


def _terms(bound: BoundReport, device: DeviceReport) -> Iterator[str]:
    for value, text in (
        (bound.memory, f"{bound.read / 1e9:.2f} GB / {device.memory_bandwidth_gb or 0:g} GB/s"),
        (bound.wire, f"{bound.sent / 1e9:.3f} GB / {device.link_gb or 0:g} GB/s"),
    ):
        if value is not None:
            yield f"{text} = {value * 1e3:.2f} ms"
    for element, number in bound.multiplied.items():
        peak = device.peak_tera.get(element)
        known = f" / {peak:g} = {number / 1e12 / peak * 1e3:.2f} ms" if peak else ", peak not known"
        yield f"{number / 1e12:.3f} T operations in {element}{known}"


def show_search(report: SearchReport) -> None:
    """Print a search: the best split first."""
    console = make_console(width=120)
    console.print(Text(f"{report.model}: {report.devices} x {report.device.name}, {report.profile}", style="bold"))
    table = Table()
    for name in ("tp x dp", "fits", "sequences", "left", "decode at least", "tokens/s at most", "prefill at least", ""):
        table.add_column(name)
    for row in report.rows:
        decoded, first = row.decode, row.prefill
        table.add_row(
            f"{row.tensor_parallel} x {row.data_parallel}",
            "yes" if row.fits else "no",
            str(row.sequences),
            size(row.left) if row.left >= 0 else f"-{size(-row.left)}",
            "-" if decoded is None else f"{decoded.seconds * 1e3:.2f} ms ({decoded.by})",
            "-" if decoded is None else f"{decoded.tokens_per_second:,.0f}",
            "-" if first is None else f"{first.seconds * 1e3:.1f} ms ({first.by})",
            row.why_not,
        )
    console.print(table)
    length = f"Sequences of {report.max_model_len} tokens. "
    console.print(Text(length + report.ranked_by))
    for note in report.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
