"""Metrics of a model's expert load: which series, how many, what they say, and that the dashboard asks for them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from vllm_megamoe.lanes import metrics
from vllm_megamoe.lanes.metrics import METRICS, PREFIX, Written, groups, totals
from vllm_megamoe.layer.model_load import LayerLoad, ModelLoad
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan

PLAN = make_plan(EngineFacts("bfloat16"), [], Options(backend="cpu"))


def layer(index: int, rows: tuple[tuple[int, ...], ...], calls: int = 1, **changes: Any) -> LayerLoad:
    facts = {"draft": False, "topk": 2, "bound": 100, "dropped": 0, "largest": None} | changes
    experts = tuple(range(sum(map(len, rows))))
    return LayerLoad(f"model.layers.{index}.mlp.experts", index, experts=experts, calls=calls, rows=rows, **facts)


def read(folder: Path) -> dict[tuple[str, str], float]:
    """All series by name and the label `layers`."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(s.name, s.labels.get("layers", "")): s.value for family in families for s in family.samples}


def test_values_by_hand(tmp_path: Path) -> None:
    """Two ranks of two experts. Layer 0: 40 rows, fullest expert 20 of mean 10, fullest rank 30 of mean 20; top-2 of 20
    tokens in 5 calls of two ranks: 2 a call; the fullest rank receives 6 of 100 a call."""
    load = ModelLoad(5, (layer(0, ((20, 10), (4, 6)), 5), layer(1, ((10, 10), (10, 10)), 5, dropped=3, largest=125)))
    Written(str(tmp_path), "m", PLAN)(load)
    found = {
        (name.removeprefix(PREFIX), group): value
        for (name, group), value in read(tmp_path).items()
        if "info" not in name
    }
    assert found == {
        ("expert_load_max_over_mean", "0"): 2.0,
        ("expert_load_max_over_mean", "1"): 1.0,
        ("rank_load_max_over_mean", "0"): 1.5,
        ("rank_load_max_over_mean", "1"): 1.0,
        ("receive_headroom", "0"): 0.94,
        ("receive_headroom", "1"): 0.96,
        ("receive_headroom_least", ""): -0.25,
        ("rows_per_call", ""): 2.0,
        ("expert_rows_total", ""): 80.0,
        ("operator_calls_total", ""): 20.0,
        ("dropped_rows_total", "0"): 0.0,
        ("dropped_rows_total", "1"): 3.0,
    }
    assert totals(str(tmp_path)) == "80 rows to experts in 20 operator calls, 3 dropped"


def test_few_series_for_many_layers_and_ranks(tmp_path: Path) -> None:
    """61 layers on 72 ranks are 4,392 pairs."""
    load = ModelLoad(1, tuple(layer(3 + i, ((1, 2),) * 72) for i in range(61)))
    Written(str(tmp_path), "m", PLAN)(load)
    assert [name for name, _ in groups(load)] == [
        "3-10", "11-18", "19-26", "27-34", "35-42", "43-50", "51-58", "59-63",
    ]  # fmt: skip
    assert len(read(tmp_path)) == 36  # docs/balance.md


def test_draft_layers_are_a_group_of_their_own() -> None:
    load = ModelLoad(1, (layer(0, ((1,),)), layer(1, ((1,),)), layer(2, ((1,),), draft=True)))
    assert [name for name, _ in groups(load)] == ["0", "1", "draft"]


def test_ratios_are_of_the_last_half_minute_and_counters_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock[0])
    write = Written(str(tmp_path), "m", PLAN)
    for at, rows in ((0.0, (90, 10)), (20.0, (100, 20)), (40.0, (110, 30)), (60.0, (120, 40))):
        clock[0] = at
        write(ModelLoad(1, (layer(0, (rows,)),)))
    found = read(tmp_path)
    # From 20 s on: 20 rows each. The first readings' 90 to 10 is out of sight.
    assert found[PREFIX + "expert_load_max_over_mean", "0"] == 1.0
    assert found[PREFIX + "expert_rows_total", ""] == 160.0


def test_two_engines_of_a_process_add_up(tmp_path: Path) -> None:
    """Pipeline stages, and draft models that vLLM gives a config of their own."""
    for index in range(2):
        Written(str(tmp_path), "m", PLAN)(ModelLoad(1, (layer(index, ((3, 4),)),)))
    found = read(tmp_path)
    assert found[PREFIX + "expert_rows_total", ""] == 14.0
    assert {group for name, group in found if name.endswith("expert_load_max_over_mean")} == {"0", "1"}


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    Written(str(tmp_path / "gone"), "m", PLAN)(ModelLoad(1, (layer(0, ((1,),)),)))
    assert not (tmp_path / "gone").exists()


def queries(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key in ("expr", "definition"))
        yield from (query for value in node.values() for query in queries(value))
    elif isinstance(node, list):
        yield from (query for value in node for query in queries(value))


def test_the_dashboard_asks_for_metrics_that_exist_and_for_all_of_them(repository: Path) -> None:
    board = json.loads((repository / "configs" / "grafana-megamoe.json").read_text())
    asked = {name for query in queries(board) for name in re.findall(r"vllm:\w+", query)}
    assert asked == {PREFIX + metric.name for metric in METRICS} | {PREFIX + "info"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) > 0
