"""vLLM's activations in the operator's terms; the expected rows are those of the operator's document and of vLLM."""

import pytest

from vllm_megamoe.plan.activation import ActivationPlan, plan_activation
from vllm_megamoe.plan.facts import ActivationFacts

INF = float("inf")

ROWS = {
    "plain": (ActivationFacts("silu"), ActivationPlan("swiglu")),
    "limit": (ActivationFacts("silu", limit=10.0), ActivationPlan("swiglu", 10.0)),
    # Configs write 0 and inf for "no clamp"; on 950 a clamp of 0 would zero every output.
    "limit 0": (ActivationFacts("silu", limit=0.0), ActivationPlan("swiglu")),
    "limit inf": (ActivationFacts("silu", limit=INF), ActivationPlan("swiglu")),
    "step": (ActivationFacts("swiglustep", limit=7.0), ActivationPlan("swiglustep", 7.0)),
    "step without limit": (ActivationFacts("swiglustep"), ActivationPlan("swiglu")),
    "oai, all named": (
        ActivationFacts("swigluoai_uninterleave", limit=7.0, alpha=1.5, beta=0.5),
        ActivationPlan("swigluoai", 7.0, (("alpha", 1.5), ("beta", 0.5))),
    ),
    "oai, as gpt-oss": (
        ActivationFacts("swigluoai", limit=7.0),
        ActivationPlan("swigluoai", 7.0, (("alpha", 1.702), ("beta", 1.0))),
    ),
    # A factor of 0 is one, and not absent: the operator's own default would be 1.
    "oai with beta 0": (
        ActivationFacts("swigluoai_uninterleave", limit=7.0, alpha=0.0, beta=0.0),
        ActivationPlan("swigluoai", 7.0, (("alpha", 0.0), ("beta", 0.0))),
    ),
    "situ": (
        ActivationFacts("situ", beta=4.0, linear_beta=25.0),
        ActivationPlan("situglu", None, (("beta", 4.0), ("linear_beta", 25.0))),
    ),
    "situ, linear": (ActivationFacts("situ", beta=4.0), ActivationPlan("situglu", None, (("beta", 4.0),))),
    # situ has no clamp in the operator: a limit beside it has no meaning there.
    "situ with a limit": (ActivationFacts("situ", limit=3.0), ActivationPlan("situglu", None, (("beta", 1.0),))),
}


@pytest.mark.parametrize("case", ROWS)
def test_mapped(case: str) -> None:
    facts, expected = ROWS[case]
    assert plan_activation(facts) == expected


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu2", "silu_no_mul", "relu2_no_mul", "gelu_no_mul", "foo"])
def test_the_operator_has_no_such_activation(name: str) -> None:
    assert plan_activation(ActivationFacts(name)) is None


def test_parameters_are_always_explicit() -> None:
    """The defaults of alpha, beta and linear_beta differ between vLLM, products and revisions."""
    explicit = {"swigluoai": {"alpha", "beta"}, "situglu": {"beta"}}
    for name in ("silu", "swiglustep", "swigluoai", "swigluoai_uninterleave", "situ"):
        planned = plan_activation(ActivationFacts(name))
        assert planned is not None
        assert {key for key, _ in planned.params} == explicit.get(planned.name, set())
