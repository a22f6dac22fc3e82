"""docs/scale.md: tables of sizes, where products stop, what grows with what, and the load of uneven routers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.scale.routers import DOCUMENT, TRIALS, Imbalance, imbalance, recorded, replayed
from bench.scale.sizes import (
    DEEPSEEK_V3,
    EP_SIZES,
    KIMI_K3,
    SHAPES,
    Point,
    Setting,
    Shape,
    device_for,
    point_of,
    time_bound,
    why_not,
)
from torch import Tensor

from vllm_megamoe.profiles.profile import REVISIONS
from vllm_megamoe.profiles.use_cases import UseCase

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROWS = 256
"""Rows that a rank brings to a call: a decode step of so many sequences."""

SETTINGS: dict[str, tuple[Setting, ...]] = {
    DEEPSEEK_V3.name: (
        Setting("a2@9.2", UseCase.A8W8_INT, ROWS),
        Setting("a3@9.2", UseCase.A8W8_INT, ROWS),
        Setting("950@9.2", UseCase.A8W8_FP, ROWS),
    ),
    KIMI_K3.name: (
        Setting("a2@9.2", UseCase.A8W4_INT, ROWS),
        Setting("a3@9.2", UseCase.A8W4_INT, ROWS),
        Setting("950@9.2", UseCase.A8W4_FP, ROWS),
    ),
}
SKEWS = {"uniform": 0.0, "skew 0.5": 0.5, "skew 1 (Zipf)": 1.0}
STEPS = (8, 64)
"""Rows of a rank in the steps whose load is drawn."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def legal(shape: Shape, setting: Setting) -> list[Point]:
    """The EP sizes that the product takes for this layer."""
    return [point_of(shape, setting, size) for size in EP_SIZES if not why_not(shape, setting, size)]


def sizes_of(shape: Shape, setting: Setting) -> str:
    """Table of one layer under one profile, and why the other EP sizes are missing."""
    head = ["EP", "experts", "weights", "window", "workspace", "rows received at most", "dispatch", "combine", "leaves"]
    rows = [
        [
            point.ep_size,
            point.experts,
            f"{point.weights / GIB:.2f} GiB",
            f"{point.window / MIB:.1f} MiB",
            f"{point.workspace / MIB:.1f} MiB",
            point.receives,
            f"{point.wire.dispatch / KIB:.1f} KiB",
            f"{point.wire.combine / KIB:.1f} KiB",
            f"{point.wire.remote_share:.0%}",
        ]
        for point in legal(shape, setting)
    ]
    stops = "\n".join(f"- no EP {size}: {why}" for size in EP_SIZES if (why := why_not(shape, setting, size)))
    return f"### {shape.name}, {setting.profile}, {setting.use_case.value}\n\n{table(head, rows)}\n\n{stops}"


GROWS: dict[str, Callable[[Point], int]] = {
    "window": lambda point: point.window,
    "workspace": lambda point: point.workspace,
    "rows received at most": lambda point: point.receives,
    "weights of a rank": lambda point: point.weights,
}


def growth(shape: Shape, setting: Setting) -> list[list[object]]:
    """What one row more, twice the ranks and twice the experts add at EP 16."""
    here = point_of(shape, setting, 16)
    changed = (
        point_of(shape, replace(setting, rows=2 * setting.rows), 16),
        point_of(shape, setting, 32),
        point_of(replace(shape, experts=2 * shape.experts), setting, 16),
    )
    lines: list[list[object]] = []
    for name, size in GROWS.items():
        cells = [f"x {size(there) / size(here):.2f}" for there in changed]
        lines.append([f"{shape.name}, {setting.profile}", name, *cells])
    return lines


def load_rows(shape: Shape, tokens: int, ids: Tensor) -> list[list[object]]:
    """Fullest rank over the mean, a line per router, a column per EP size; ids of another topk are not replayed."""
    sizes = [size for size in EP_SIZES if shape.experts % size == 0]
    lines: list[list[object]] = []
    for name, skew in SKEWS.items():
        found = [imbalance(tokens * size, shape.experts, shape.topk, skew, size) for size in sizes]
        lines.append([f"{name}, {tokens} rows a rank", *map(_shown, found), *_blank(sizes)])
    if ids.shape[1] == shape.topk:
        found = [replayed(ids, tokens * size, shape.experts, size) for size in sizes if tokens * size <= len(ids)]
        cells = [*map(_shown, found), *["-"] * (len(sizes) - len(found))]
        lines.append([f"replayed ids, {tokens} rows a rank", *cells, *_blank(sizes)])
    return lines


def bound_rows(shape: Shape, setting: Setting) -> list[list[object]]:
    """Least microseconds of a call, a line per skew, a column per EP size."""
    lines: list[list[object]] = []
    for name, skew in SKEWS.items():
        cells = []
        for size in EP_SIZES:
            if why_not(shape, setting, size):
                cells.append("-")
                continue
            bound = time_bound(shape, setting, size, skew)
            cells.append(f"{bound.seconds * 1e6:.0f} {bound.by}")
        lines.append([f"{shape.name}, {setting.profile} ({device_for(setting).name}), {name}", *cells])
    return lines


def _shown(found: Imbalance) -> str:
    return f"{found.median:.2f} ({found.worst:.2f})"


def _blank(sizes: list[int]) -> list[str]:
    return ["-"] * (len(EP_SIZES) - len(sizes))


def page(ids: Tensor | None = None) -> str:
    """The whole text.

    Args:
        ids: to replay, for the shapes of as many experts a token; without them those of `recorded`.
    """
    replay = {
        shape.name: recorded(STEPS[-1] * EP_SIZES[-1], shape.experts, shape.topk) if ids is None else ids
        for shape in SHAPES
    }
    settings = [(shape, setting) for shape in SHAPES for setting in SETTINGS[shape.name]]
    sizes = "\n\n".join(sizes_of(shape, setting) for shape, setting in settings)
    grows = table(
        ["layer", "of a rank", "twice the rows", "twice the ranks", "twice the experts"],
        [line for shape, setting in settings for line in growth(shape, setting)],
    )
    bounds = table(
        ["layer", *(f"EP {size}" for size in EP_SIZES)],
        [line for shape, setting in settings for line in bound_rows(shape, setting)],
    )
    loads = "\n\n".join(
        f"### {shape.name}\n\n"
        + table(
            ["router", *(f"EP {size}" for size in EP_SIZES)],
            [line for tokens in STEPS for line in load_rows(shape, tokens, replay[shape.name])],
        )
        for shape in SHAPES
    )
    return f"""# Scale, by computation

`make bench` writes this page (`bench.scale`). Nothing here was measured: sizes come from the package's size functions,
which follow the operator's own formulas to the byte ([limits.md](limits.md)); loads from routers that are drawn.
{REVISIONS[0].upper()}{REVISIONS[1:]}.

- One MoE layer, {ROWS} rows of each rank in a call, no `max_recv_token_num`: a buffer has room for all that can come.
- `window` is communication memory of a rank, shared by all layers; `workspace` is that of a call, used in turn;
  `weights` are a rank's routed experts of one layer, as operands.
- `dispatch` and `combine` are bytes of a token in a layer; `leaves` is the part that goes to other ranks.

![Window and workspace over the EP size](scale.svg)

## What grows with what

At EP 16, as a factor. With the ranks a rank's experts get fewer and its received rows more, until a rank holds fewer
experts than a token has: from there on the bound of received rows stays. With the rows of a call all but the
weights grow. With the number of experts the weights grow; the window grows only where its formula counts experts.

{grows}

## Sizes

{sizes}

## Least time of a layer

Microseconds that one call of a layer takes at least on the fullest rank, and what decides, as `vllm-megamoe plan`
bounds it: weights that are touched over the memory's bandwidth, multiply-adds over the peak, bytes over the link, of
the vendors' figures. Popular experts are dealt out in turn here, so the fullest rank is as good as placement makes it.

{bounds}

## Load of a rank

Rows of the fullest rank over the mean of all: a layer waits for its fullest rank. In brackets the worst of {TRIALS}
routers, before it the median. `skew s`: the i-th most popular expert is chosen in proportion to i^-s; popular experts
lie on ranks at random. A step of few rows is uneven by chance alone, also with a uniform router. `replayed ids` are
those that a linear router of random weights chose over documents of {DOCUMENT} tokens, half of each token's state its
document's, in consecutive steps of all ranks together: tokens of a document like the same experts.

{loads}

Ids of a router of your own: `PYTHONPATH=tests python -m bench.scale --replay ids.npy`, int [tokens, topk]. What an
engine counts of its own experts is in its log (README, expert load).
"""


def draw(file: Path) -> None:
    """Window and workspace over the EP size, a line per profile, a picture per model."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "scale"
    figure: Any = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, shape in zip(figure.subplots(1, 2), SHAPES, strict=True):
        for setting in SETTINGS[shape.name]:
            points = legal(shape, setting)
            sizes = [point.ep_size for point in points]
            for name, mark in (("window", "o-"), ("workspace", "x--")):
                values = [getattr(point, name) / MIB for point in points]
                axes.plot(sizes, values, mark, label=f"{setting.profile} {name}")
        axes.set(title=f"{shape.name}, {ROWS} rows a rank", xlabel="EP size", ylabel="MiB", xscale="log", yscale="log")
        axes.set_xticks(EP_SIZES, [str(size) for size in EP_SIZES])
        axes.legend(fontsize="small")
    figure.savefig(file, metadata={"Date": None})
