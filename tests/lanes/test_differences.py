"""What a running layer shows beside what was planned for it: what counts with and without the runner around it."""

from dataclasses import replace

import pytest

from vllm_megamoe.checkpoint.formats import Known
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.carried import Carried, LiveFacts
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan

ENGINE = EngineFacts("bfloat16")
LAYER = MoeFacts(
    "model.layers.0.mlp.experts", 8, 2, 64, 64, index=0, shared=SharedFacts(64, 64), routed_scaling_factor=2.5
)


def plan_of(planned: MoeFacts, running: MoeFacts, *, whole: bool) -> MoeFacts:
    """The facts that a running layer gets of the engine's plan."""
    carried = Carried(make_plan(ENGINE, [planned], Options()), "ForTests", known=True, num_layers=1)
    return carried.plan_of(LiveFacts(ENGINE, running, whole, draft=False)).facts


@pytest.mark.parametrize(
    ("on_output", "shown", "agrees"), [(False, 2.5, True), (False, 1.0, False), (True, 1.0, True), (True, 2.5, False)]
)
def test_the_factor_that_a_layer_without_its_runner_shows(on_output: bool, shown: float, agrees: bool) -> None:
    """A router multiplies it onto the weights within the layer; what the runner multiplies comes later."""
    planned = replace(LAYER, scale_on_output=on_output)
    running = replace(planned, shared=None, routed_scaling_factor=shown)
    if agrees:
        assert plan_of(planned, running, whole=False) == planned
        return
    expected = 1.0 if on_output else 2.5
    with pytest.raises(ConfigError, match=f"routed_scaling_factor: {expected} in the plan, {shown} in the running"):
        plan_of(planned, running, whole=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experts_format": Known("mxfp8")}, "shared.experts_format: bf16 in the plan, mxfp8 in the running layer"),
        ({"intermediate_hidden": 128}, "shared.intermediate_hidden: 64 in the plan, 128 in the running layer"),
        ({"gated": True}, "shared.gated: False in the plan, True in the running layer"),
    ],
    ids=str,
)
def test_shared_experts_are_compared_once_the_runner_shows_them(change: dict[str, object], words: str) -> None:
    running = replace(LAYER, shared=replace(SharedFacts(64, 64), **change))  # type: ignore[arg-type]
    assert plan_of(LAYER, running, whole=False) == LAYER
    with pytest.raises(ConfigError, match=words):
        plan_of(LAYER, running, whole=True)
