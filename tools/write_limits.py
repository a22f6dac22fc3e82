"""Write docs/limits.md from the table of limits.

python -m tools.write_limits
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from vllm_megamoe.profiles.limits import TABLE, Cell, Limits, Numbers
from vllm_megamoe.profiles.profile import REVISIONS
from vllm_megamoe.profiles.rules import RULES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "limits.md"
COLUMNS = {
    "a2@9.1": ("a2@9.1", "mte"),
    "a3@9.1": ("a3@9.1", "mte"),
    "950@9.1": ("950@9.1", "mte"),
    "a2@9.2": ("a2@9.2", "mte"),
    "a3@9.2": ("a3@9.2", "mte"),
    "950@9.2 mte": ("950@9.2", "mte"),
    "950@9.2 urma": ("950@9.2", "urma"),
}
ROWS = {
    "ep_sizes": "ranks of the communicator",
    "hidden": "hidden",
    "created_hidden": "hidden, at creation of the buffer",
    "intermediate": "intermediate_hidden (I, after the activation)",
    "topk": "num_topk",
    "created_topk": "num_topk, at creation",
    "max_tokens": "num_max_tokens_per_rank at most",
    "max_experts": "num_experts at most",
    "created_experts": "num_experts, at creation",
    "max_experts_per_rank": "routed experts of a rank at most",
    "rows": "rows of a call",
    "bounded_receive": "max_recv_token_num at most what can come",
    "receive_factor_int4": "capacity of INT4 weights, times what can come",
    "dispatch": "(dispatch_quant_mode, dispatch_quant_out_dtype)",
    "prequantised": "x quantised by the caller",
    "use_cases": "use cases",
    "formats": "storage formats of the weights",
    "layouts": "layout of the weight lists",
    "router_weights": "type of topk_weights",
    "mask": "x_active_mask",
    "activations": "activations",
    "clamp": "activation_clamp",
    "combine_quant_modes": "combine_quant_mode",
    "topk_weights_types": "topk_weights_type",
    "combine_comm_modes": "combine_comm_mode",
    "max_shared_experts": "shared experts at most",
    "shared_use_cases": "use cases of shared experts",
    "mixed_shared": "shared experts of another type",
    "many_buffers": "several buffers on one communicator",
}
WORDS: dict[str, dict[object, str]] = {
    "rows": {
        "any": "up to num_max_tokens_per_rank",
        "alike": "the same on all ranks",
        "full": "num_max_tokens_per_rank",
    },
    "clamp": {"any": "0 (off) or more", "positive": "above 0", "none": "none"},
    "receive_factor_int4": {0: "no INT4", 1: "no demand", 2: "2, and 0 is too little"},
}

INTRODUCTION = (
    f"A profile names a product and an operator revision: {REVISIONS}.",
    "`VLLM_MEGAMOE_PROFILE=a3@9.1`, or `profile` in the options, brings its limits into force; without one",
    "the CPU twin takes all that the documents describe. Where a document and the code differ, the stricter counts",
    "and both are cited. What the device silently gets wrong is rejected too; the message says what it would do.",
)


def page() -> str:
    """The whole page."""
    return "\n".join([*_head(), *_table(), *_sources(), *_rules(), ""])


def _head() -> Iterator[str]:
    yield "# Limits of each product"
    yield ""
    yield "Written by `python -m tools.write_limits` from `vllm_megamoe/profiles/limits`; do not edit."
    yield ""
    yield from INTRODUCTION
    yield ""


def _table() -> Iterator[str]:
    yield "## The table"
    yield ""
    yield "| | " + " | ".join(COLUMNS) + " |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for name, title in ROWS.items():
        yield f"| {title} | " + " | ".join(shown(name, cell.value) for cell in _cells(name)) + " |"
    yield ""


def _sources() -> Iterator[str]:
    yield "## Where each limit stands"
    yield ""
    yield "A number behind a source is a line of it. `arch22` is the operator of A2 and A3, `arch35` that of 950."
    yield ""
    for name, title in ROWS.items():
        yield f"### {title}"
        yield ""
        grouped: dict[str, list[str]] = {}
        for column, cell in zip(COLUMNS, _cells(name), strict=True):
            grouped.setdefault(cell.source, []).append(column)
        for source, columns in grouped.items():
            yield f"- {', '.join(columns)}: {source}"
        yield ""


def _rules() -> Iterator[str]:
    yield "## Rules"
    yield ""
    yield "Each is looked at where the device looks: at creation of the buffer, or at the call."
    yield ""
    yield "| Rule | At | About |"
    yield "|---|---|---|"
    for rule in RULES:
        yield f"| {rule.id} | {rule.at} | {rule.about} |"


def _cells(name: str) -> list[Cell[object]]:
    return [getattr(TABLE[key], name) for key in COLUMNS.values()]


def shown(name: str, value: object) -> str:
    """A cell's value in words."""
    if name in WORDS:
        return WORDS[name][value]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "no bound"
    if isinstance(value, Numbers | int):
        return str(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{kind[1]} behind {kind[0] or 'BF16'}: {_formats(found)}" for kind, found in value.items())
    if isinstance(value, Iterable):
        return ", ".join(sorted(_item(item) for item in value)) or "none"
    raise TypeError(f"{name}: no words for a {type(value).__name__}")


def _formats(found: Iterable[tuple[str, str]]) -> str:
    return " or ".join(" + ".join(pair) for pair in found)


def _item(item: object) -> str:
    return f"({item[0]}, {item[1]})" if isinstance(item, tuple) else str(item)


def main() -> None:
    """Write the page."""
    missing = {field.name for field in fields(Limits)} - set(ROWS)
    if missing:
        raise SystemExit(f"tools.write_limits has no title for {', '.join(sorted(missing))}; add it to ROWS.")
    PAGE.write_text(page(), encoding="utf-8")
    print(f"docs: wrote {PAGE.name}")


if __name__ == "__main__":
    main()
