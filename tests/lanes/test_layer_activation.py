"""The activation of a live layer, with the parameters that vLLM's own operation takes."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.model_executor.layers.fused_moe.activation import ApplyMoEActivationConfig, MoEActivation

from vllm_megamoe.lanes.layer_facts import read_activation
from vllm_megamoe.plan.activation import plan_activation
from vllm_megamoe.plan.facts import ActivationFacts

UNSET = {
    "swiglu_limit": None,
    "swiglu_alpha": None,
    "swiglu_beta": None,
    "activation_situ_beta": None,
    "activation_situ_linear_beta": None,
}


def moe(activation: MoEActivation, **values: float) -> Any:
    """As much of a FusedMoEConfig as says the activation."""
    return SimpleNamespace(activation=activation, **(UNSET | values))


@pytest.mark.parametrize("values", [{}, {"swiglu_alpha": 1.5}, {"swiglu_beta": 0.5}, {"swiglu_alpha": 0.0}], ids=str)
def test_absent_factors_of_separate_halves_are_vllms(values: dict[str, float]) -> None:
    layer = moe(MoEActivation.SWIGLUOAI_UNINTERLEAVE, swiglu_limit=7.0, **values)
    none = SimpleNamespace(gemm1_clamp_limit=None, gemm1_alpha=None, gemm1_beta=None)
    theirs = ApplyMoEActivationConfig.from_configs(layer, none)  # type: ignore[arg-type]
    planned = plan_activation(read_activation(layer))
    assert planned is not None
    assert (planned.clamp, dict(planned.params)) == (7.0, {"alpha": theirs.alpha, "beta": theirs.beta})


@pytest.mark.parametrize(
    ("layer", "facts"),
    [
        (moe(MoEActivation.SILU), ActivationFacts("silu")),
        (moe(MoEActivation.SILU, swiglu_limit=10.0), ActivationFacts("silu", 10.0)),
        (moe(MoEActivation.SILU, swiglu_limit=0.0), ActivationFacts("silu")),
        (moe(MoEActivation.SWIGLUOAI), ActivationFacts("swigluoai", 7.0, 1.702, 1.0)),
        (moe(MoEActivation.SWIGLUOAI, swiglu_beta=0.0), ActivationFacts("swigluoai", 7.0, 1.702, 0.0)),
        (moe(MoEActivation.SWIGLUSTEP), ActivationFacts("swiglustep", 7.0)),
        (moe(MoEActivation.SWIGLUSTEP, swiglu_limit=16.0), ActivationFacts("swiglustep", 16.0)),
        (moe(MoEActivation.SITU), ActivationFacts("situ", beta=1.0)),
        (
            moe(MoEActivation.SITU, activation_situ_beta=4.0, activation_situ_linear_beta=25.0),
            ActivationFacts("situ", beta=4.0, linear_beta=25.0),
        ),
        (moe(MoEActivation.GELU, swiglu_limit=7.0), ActivationFacts("gelu")),
    ],
    ids=str,
)
def test_what_a_layer_says(layer: Any, facts: ActivationFacts) -> None:
    assert read_activation(layer) == facts
