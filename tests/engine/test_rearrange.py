"""Experts of a running engine move to the slots that `plan` chose from its measured load, and the load is as it said.

Rows of each expert come from the first run, one expert a slot; what ranks get afterwards follows from them by addition.
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli.command import run as command
from engine.engines import EAGER, MEGAMOE, TP2, Engines, Prompts
from engine.steps import layers, teacher

from vllm_megamoe.lanes.rearrange import rearrange_experts

pytestmark = [pytest.mark.engine, pytest.mark.full]

OPTIONS = {"use_case": "a8w8-int", "requant": "allow"}


def rearranged(llm: Any, file: str) -> list[int]:
    """Slots that got another expert, of this rank."""
    moved: list[int] = llm.collective_rpc(rearrange_experts, args=(file,))
    return moved


def rows_between(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Rows of each slot of a rank, by layer."""
    return {
        b["name"].removesuffix(".routed_experts"): [y - x for x, y in zip(b["counts"], a["counts"], strict=True)]
        for b, a in zip(before, after, strict=True)
    }


def by_slot(ranks: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    return {name: [rows for rank in ranks for rows in rank[name]] for name in ranks[0]}


def fullest_over_mean(rows: list[int]) -> float:
    """Of two ranks with half of the slots each."""
    half = len(rows) // 2
    return max(sum(rows[:half]), sum(rows[half:])) / (sum(rows) / 2)


def test_experts_move_and_the_load_falls_as_the_plan_said(
    engines: Engines, checkpoint: str, prompts: Prompts, tmp_path: Path
) -> None:
    llm = {
        "model": checkpoint,
        **MEGAMOE,
        **TP2,
        **EAGER,
        "dtype": "bfloat16",
        "enable_prefix_caching": False,
        "additional_config": {"megamoe": OPTIONS},
    }
    ask = partial(teacher, sequences=prompts, starts=[1] * len(prompts))
    measured = engines.run(llm, [layers, ask, layers])
    rows = by_slot([rows_between(before, after) for before, _, after in measured])
    load, placement = tmp_path / "load.json", tmp_path / "placement.json"
    content = {"format": "megamoe expert load 1", "layers": {name: {"rows": each} for name, each in rows.items()}}
    load.write_text(json.dumps(content))
    given = ("--tp", "2", "--use-case", "a8w8-int", "--requant", "allow")
    told = command(
        "plan", checkpoint, *given, "--placement-from", str(load), "--write-placement", str(placement)
    ).stdout
    slots = json.loads(placement.read_text())["layers"]

    found = engines.run(llm, [ask, partial(rearranged, file=str(placement)), layers, ask, layers])
    for (before, moved, _, after, _), (_, first, _) in zip(found, measured, strict=True):
        assert before == after == first  # INT8: the same bits wherever an expert stands
        assert sum(moved) > 0
    after = by_slot([rows_between(one, two) for _, _, one, _, two in found])
    for name, own in slots.items():
        assert after[name] == [rows[name][expert] for expert in own]
        said = re.search(rf"{re.escape(name)}: ([\d.]+) -> ([\d.]+)", told)
        assert said is not None, told
        was, becomes = fullest_over_mean(rows[name]), fullest_over_mean(after[name])
        assert (f"{was:.2f}", f"{becomes:.2f}") == said.groups()
        assert becomes < was
