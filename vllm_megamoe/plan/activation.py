"""The model's activation in the operator's terms: one row for each activation that the operator has.

Formulas: facts of vLLM's MoEActivation and operator_readme.txt, activation and activationParams. Every parameter is
passed explicitly, because defaults differ between vLLM, products and revisions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from vllm_megamoe.plan.facts import ActivationFacts

# vLLM's constants of gpt-oss, whose config.json does not name them.
_OAI_ALPHA, _OAI_BETA = 1.702, 1.0


@dataclass(frozen=True, slots=True)
class ActivationPlan:
    """What a call passes.

    Attributes:
        name: `activation` of the operator.
        clamp: `activation_clamp`, None for none. Never 0: A2/A3 read it as none, 950 as a clamp to zero.
        params: `activation_params` as sorted pairs, empty for none.
    """

    name: str
    clamp: float | None = None
    params: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        numbers = [f"clamp {self.clamp:g}"] if self.clamp is not None else []
        numbers += [f"{key} {value:g}" for key, value in self.params]
        return f"{self.name} ({', '.join(numbers)})" if numbers else self.name


def _swiglu(facts: ActivationFacts) -> ActivationPlan:
    return ActivationPlan("swiglu", limit_of(facts))


def _swiglustep(facts: ActivationFacts) -> ActivationPlan:
    # Without a limit, min(silu(g), inf) * u is plain SwiGLU, which every revision has.
    limit = limit_of(facts)
    return ActivationPlan("swiglu" if limit is None else "swiglustep", limit)


def _swigluoai(facts: ActivationFacts) -> ActivationPlan:
    alpha = _OAI_ALPHA if facts.alpha is None else facts.alpha
    beta = _OAI_BETA if facts.beta is None else facts.beta
    return ActivationPlan("swigluoai", limit_of(facts), (("alpha", alpha), ("beta", beta)))


def _situ(facts: ActivationFacts) -> ActivationPlan:
    params = [("beta", 1.0 if facts.beta is None else facts.beta)]
    if facts.linear_beta is not None:
        params.append(("linear_beta", facts.linear_beta))
    return ActivationPlan("situglu", None, tuple(params))


ACTIVATIONS: dict[str, Callable[[ActivationFacts], ActivationPlan]] = {
    "silu": _swiglu,
    "swiglu": _swiglu,
    "swiglustep": _swiglustep,
    "swigluoai": _swigluoai,
    "swigluoai_uninterleave": _swigluoai,
    "situ": _situ,
}
"""vLLM's name -> the operator's activation. GELU, ReLU2 and ungated experts have no row: the operator lacks them."""


def limit_of(facts: ActivationFacts) -> float | None:
    """The clamp, None for None, 0 and infinity: configs write all three for "no clamp"."""
    limit = facts.limit
    return None if limit is None or limit == 0 or math.isinf(limit) else float(limit)


def plan_activation(facts: ActivationFacts) -> ActivationPlan | None:
    """The operator's activation, or None when it has none for this one."""
    row = ACTIVATIONS.get(facts.name)
    return None if row is None else row(facts)
