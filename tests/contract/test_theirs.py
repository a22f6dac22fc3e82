"""vllm-ascend's own unit tests that name MegaMoE, with our pytest plugin in place of their MagicMock for torch_npu.

Their mock casts no format and accepts any call; the simulator does the one and rejects the other. A test of theirs that
passes over the mock and fails over the simulator is explained here, or is a fault of the simulator.
"""

from collections import Counter
from pathlib import Path

import pytest
from contract.support.launch import RECORD
from contract.support.theirs import Theirs, named_tests, run_theirs

EXPLAINED: dict[str, str] = {}
"""Test -> why it fails over the simulator."""


@pytest.fixture(scope="module")
def named(ascend_sources: Path) -> list[str]:
    return named_tests(ascend_sources)


@pytest.fixture(scope="module")
def over_the_simulator(ascend_sources: Path, named: list[str]) -> Theirs:
    return run_theirs(ascend_sources, named, simulated=True)


def test_there_are_such_tests(named: list[str]) -> None:
    assert len(named) == 68


def test_they_met_the_simulator(over_the_simulator: Theirs) -> None:
    met = over_the_simulator.met
    assert (met["torch_npu"], met["torch.npu"], met["product"]) == ("0.0+simulated", "Npu", "A2")


def test_each_failure_is_explained(over_the_simulator: Theirs) -> None:
    outcomes = over_the_simulator.outcomes
    counts = Counter(outcome.result for outcome in outcomes.values())
    RECORD.notes.append(f"vllm-ascend's own tests that name MegaMoE, over the simulator: {dict(counts)}")
    RECORD.notes += [f"fails, as explained: {name}: {reason}" for name, reason in EXPLAINED.items()]
    RECORD.asked.update(f"{name} (not simulated)" for name in over_the_simulator.met["asked"])
    failed = {name: outcome.reason for name, outcome in outcomes.items() if outcome.result != "passed"}
    assert failed.keys() == EXPLAINED.keys(), failed
    assert counts["passed"] == len(outcomes) - len(EXPLAINED)


def test_the_fused_half_of_their_nightly_check() -> None:
    """Kimi-K3's layer, made small, within their own bound (tests/e2e/nightly/single_node/ops/test_mega_moe.py)."""
    from contract.support.launch import run

    for answer in run("950@9.2", ["kimi_layer"], ranks=2)["kimi_layer"]:
        assert answer["finite"]
        assert answer["counts_equal"]
        assert answer["relative_rmse"] < 0.03
        assert answer["cosine"] > 0.999
        RECORD.notes.append(f"their nightly check, fused half: relative RMSE {answer['relative_rmse']:.4f}")
