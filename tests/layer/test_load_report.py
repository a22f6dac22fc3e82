"""When the log tells the expert load, and what."""

import json
from pathlib import Path

import pytest
from layer.layers import facts_of, plan_of, rows_of, state_of
from oracle.make import Shape, make_case

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer import load_report
from vllm_megamoe.layer import state as state_module
from vllm_megamoe.layer.load_report import Audience, LoadReport
from vllm_megamoe.layer.model_load import ModelLoad
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.layer_plan import LayerPlan

CASE = make_case("a8w8-int", Shape(tokens=(7,)))


def layer(plan: LayerPlan | None = None) -> LayerState:
    return state_of(CASE, 0, plan or plan_of(CASE))


def run(state: LayerState, steps: int) -> None:
    for _ in range(steps):
        state.run(*rows_of(CASE, 0))


def watched(every: int, state: LayerState, audience: Audience | None = None) -> tuple[LoadReport, object]:
    """A report without its thread; the caller looks."""
    report = LoadReport(every, look_s=None)
    return report, report.watch(state, audience)


def test_a_report_every_so_many_steps() -> None:
    state = layer()
    report, keep = watched(3, state)
    seen = []
    for _ in range(7):
        run(state, 1)
        seen.append(len(report.lines()))
    assert seen == [0, 0, 2, 0, 0, 2, 0]
    del keep


def test_one_more_at_rest_and_then_none() -> None:
    state = layer()
    report, keep = watched(100, state)
    run(state, 2)
    assert [len(report.lines()) for _ in range(5)] == [0, 0, 2, 0, 0]
    run(state, 1)
    assert [len(report.lines()) for _ in range(4)] == [0, 0, 2, 0]
    del keep


def test_the_rest_of_a_run_is_told_at_its_end() -> None:
    state = layer()
    report, keep = watched(100, state)
    run(state, 2)
    assert report.lines() == []
    assert len(report.lines(last=True)) == 2
    assert report.lines(last=True) == []
    del keep


def test_what_the_lines_say() -> None:
    state = layer(plan_of(CASE, max_recv_token_num=15, allow_token_drop=True))
    report, keep = watched(1, state)
    run(state, 1)
    report.lines()
    run(state, 2)
    whole, one = report.lines()
    counts = [2 * int((CASE.ranks[0].topk_ids == e).sum()) for e in range(4)]
    most = max(counts)
    # Of the last two steps: 21 rows of room for 15, twice.
    assert whole == "2 steps: 42 rows to the experts of 1 layers on 1 ranks, 7.0 rows a call and rank, 12 dropped"
    assert one == (
        f"layer: expert {counts.index(most)} on rank 0 got {most} rows, {most * 4 / 42:.2f} x the mean of 4; rank 0 "
        "got 42, 1.00 x the mean of 1, 12 rows dropped"
    )
    del keep


def test_a_layer_that_is_gone_is_not_reported() -> None:
    state = layer()
    report, keep = watched(1, state)
    run(state, 1)
    del keep
    assert report.lines() == []


def test_the_interval_is_read_when_the_first_layer_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at import: a bad value would break the worker then, instead of the config stage."""
    report = LoadReport(look_s=None)
    monkeypatch.setenv("VLLM_MEGAMOE_LOAD_LOG_STEPS", "2")
    state = layer()
    keep = report.watch(state)
    monkeypatch.setenv("VLLM_MEGAMOE_LOAD_LOG_STEPS", "often")
    other = report.watch(layer(), Audience(engine="another"))
    seen = []
    for _ in range(4):
        run(state, 1)
        seen.append(len(report.lines()))
    assert seen == [0, 2, 0, 2]
    del keep, other


def test_a_wrong_interval_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_LOAD_LOG_STEPS", "often")
    with pytest.raises(ConfigError, match=r"VLLM_MEGAMOE_LOAD_LOG_STEPS='often'; expected a whole number of steps"):
        LoadReport(look_s=None).watch(layer())


def test_an_interval_of_0_keeps_the_log_empty_and_tells_the_audience() -> None:
    told: list[ModelLoad] = []
    state = layer()
    report, keep = watched(0, state, Audience(sink=told.append))
    run(state, 3)
    assert [report.lines() for _ in range(3)] == [[], [], []]
    assert [(each.steps, each.total) for each in told] == [(3, 63)]
    del keep


def test_nothing_is_told_before_the_engine_serves() -> None:
    told: list[ModelLoad] = []
    serves = [False]
    state = layer()
    report, keep = watched(1, state, Audience(sink=told.append, serves=lambda: serves[0]))
    run(state, 1)
    assert (report.lines(), told) == ([], [])
    serves[0] = True
    assert len(report.lines()) == 2
    assert [each.steps for each in told] == [1]
    del keep


def test_layers_of_one_engine_are_told_together_and_count_steps_once() -> None:
    """Both stand on one buffer; the last one counts for the other, so its step is over when it counts."""
    report = LoadReport(2, look_s=None)
    states = [layer(), layer()]
    keep = [report.watch(state, Audience(engine="one")) for state in states]
    for state in states:
        run(state, 2)
    whole, *worst = report.lines()
    assert whole.startswith("2 steps: 84 rows to the experts of 2 layers")
    assert len(worst) == 2
    assert [int(state.load.by_calls.sum()) for state in states] == [0, 2]
    assert [state.calls for state in states] == [2, 2]
    del keep


def test_rows_of_a_step_that_is_running_are_told_with_it() -> None:
    """A look in the midst of a step, after its first layer: the rows of the second come with the next look."""
    report, told = LoadReport(0, look_s=None), []
    states = [layer(), layer()]
    keep = [report.watch(state, Audience(engine="one", sink=told.append)) for state in states]
    run(states[0], 1)
    report.lines()
    run(states[1], 1)
    for _ in range(3):
        report.lines()
    assert [each.total for each in told] == [21, 42]
    del keep


def test_the_case_is_what_the_lines_assume() -> None:
    assert (facts_of(CASE).num_experts, CASE.ranks[0].topk_ids.size) == (4, 21)


def test_a_replayed_graph_counts() -> None:
    """A replay runs what the device was told, and nothing of the host: the counters alone advance."""
    state = layer()
    report, keep = watched(3, state)
    run(state, 1)
    state.load.by_calls[1] += 2  # what a captured addition does in two replays
    assert len(report.lines()) == 2
    assert state.steps == 3
    del keep


def test_the_device_is_asked_for_nothing_while_graphs_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    state = layer()
    report, keep = watched(1, state)
    clock = [1000.0]
    for module in (load_report, state_module):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(state_module, "is_capturing", lambda: True)
    run(state, 2)
    assert report.lines() == []
    clock[0] += load_report.QUIET_S
    assert len(report.lines()) == 2
    del keep


def test_the_load_file_has_every_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_LOAD_FILE", str(tmp_path / "load.json"))
    state, report = layer(), LoadReport(look_s=None)
    keep = report.watch(state)
    run(state, 1)
    report.lines()
    rows = [int((CASE.ranks[0].topk_ids == e).sum()) for e in range(4)]
    assert json.loads((tmp_path / "load.json").read_text()) == {
        "format": "megamoe expert load 1",
        "steps": 1,
        "layers": {"layer": {"rows": rows, "dropped": 0}},
    }
    del keep


def test_nothing_is_asked_where_a_capture_may_begin() -> None:
    """A capture begins before its first MoE layer runs, so the layer alone cannot tell."""
    state = layer()
    over = [False]
    report = LoadReport(1, look_s=None)
    keep = report.watch(state, may_ask=lambda: over[0])
    run(state, 2)
    assert report.lines() == []
    over[0] = True
    assert len(report.lines()) == 2
    del keep


def test_the_thread_ends_with_the_process() -> None:
    state = layer()
    report = LoadReport(1, look_s=0.001)
    keep = report.watch(state)
    run(state, 3)
    assert report._thread is not None
    assert report._thread.is_alive()
    report.stop()
    assert not report._thread.is_alive()
    del keep
