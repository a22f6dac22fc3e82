"""The table against the numbers: what it calls exact is exact in the file, and nothing that it calls lossy is.

A use case is exact for a checkpoint when it holds every projection of every routed expert.
"""

from pathlib import Path

import pytest
from formats.cases import BY_NAME, FIXTURES, GENERATED, Case, expected_loss, holds
from formats.fixture_losses import MEASURED
from formats.generate.recipes import RECIPES
from formats.kinds import KINDS, USE_CASES
from formats.readings.experts import Layer

READABLE = [case for case in GENERATED if case.name != "ms-w4a4-dualscale"]

ISSUE = {
    "msmodelslim-w8a8-dynamic", "msmodelslim-w8a8-mix", "msmodelslim-w4a8-dynamic", "msmodelslim-w4a8-dynamic-old",
    "msmodelslim-w4a8-dynamic-group", "msmodelslim-w8a8-mxfp8", "msmodelslim-w4a8-mxfp", "msmodelslim-w4a4-mxfp4",
    "fp8-block", "fp8-block-ue8m0", "deepseek-v4-fp4", "mxfp8", "compressed-tensors-w8a8", "compressed-tensors-w4a8",
    "compressed-tensors-w4a16", "compressed-tensors-mxfp8", "compressed-tensors-mxfp4",
    "compressed-tensors-w4a16-group", "compressed-tensors-fp8", "quark-mxfp4", "quark-int8", "modelopt-mxfp8",
    "modelopt-fp8", "auto-round-mxfp4", "auto-round-mxfp8", "gptq-int4", "gptq-int4-group", "awq-int4-group",
    "modelopt-nvfp4", "compressed-tensors-nvfp4", "bf16", "gpt-oss-mxfp4",
}  # fmt: skip
"""Formats that the checkpoint issue names."""


def _exact(layers: list[Layer]) -> set[str]:
    projections = [p for layer in layers for expert in layer.experts for p in expert]
    return {use_case for use_case in USE_CASES if all(holds(use_case, p) for p in projections)}


def test_every_format_of_the_issue_has_a_generated_checkpoint() -> None:
    assert {case.format for case in GENERATED} >= ISSUE
    assert len(BY_NAME) == len(FIXTURES) + len(GENERATED)


@pytest.mark.parametrize("case", FIXTURES, ids=str)
def test_exact_is_exact_in_the_fixtures(case: Case, shared_dir: Path) -> None:
    assert _exact(list(case.expected(case.place(shared_dir)).values())) == case.exact


@pytest.mark.parametrize("case", READABLE, ids=str)
def test_exact_is_exact_in_the_generated(case: Case, tmp_path: Path) -> None:
    folder = case.place(tmp_path)
    layers = case.expected(folder)
    own = [layer for name, layer in layers.items() if case.kind_of(folder, name) == case.kind]
    assert _exact(own) == case.exact
    others = {name: layer for name, layer in layers.items() if case.kind_of(folder, name) != case.kind}
    for name, layer in others.items():
        assert _exact([layer]) >= set(KINDS[case.kind_of(folder, name)].exact)


@pytest.mark.parametrize("case", FIXTURES + GENERATED, ids=str)
def test_answers_follow_from_the_facts(case: Case) -> None:
    if case.answer == "refused":
        assert case.refused
        assert not case.auto
    elif case.answer == "exact":
        assert case.exact
        assert case.auto[case.kind] in case.exact
    else:
        assert not case.exact
        assert not case.auto
        assert case.facts.offered


@pytest.mark.parametrize("folder", MEASURED)
def test_losses_of_the_fixtures_are_measured(folder: str, shared_dir: Path) -> None:
    case = BY_NAME[folder]
    assert set(MEASURED[folder]) == set(case.facts.offered) - case.exact
    layer = next(iter(case.expected(case.place(shared_dir)).values()))
    for use_case, (low, high) in MEASURED[folder].items():
        found = [expected_loss(p.values, use_case) for expert in layer.experts for p in expert]
        assert min(found) == pytest.approx(low, abs=0.006)
        assert max(found) == pytest.approx(high, abs=0.006)


def test_auto_beside_another_kind() -> None:
    assert RECIPES["ms-mxfp-and-mxfp4-a4"].auto == {"mxfp4-a4": "a8w4-fp", "mxfp8": "a8w8-fp"}
    assert RECIPES["ms-mixed-layers"].auto == {"int4": "a8w4-int", "int8": "a8w8-int"}
    assert RECIPES["ms-w4a4-mxfp4"].auto == {"mxfp4-a4": "a4w4-fp"}
    assert RECIPES["ms-w4a8-group"].auto == {"int4-two-stage": "a8w8-int"}
