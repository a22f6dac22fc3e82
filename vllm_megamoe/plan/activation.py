"""The model's activation in the operator's terms: one row for each activation that the operator has.

Formulas: facts of vLLM's MoEActivation and operator_readme.txt, activation and activationParams. Every parameter is
passed explicitly, because defaults differ between vLLM, products and revisions.
"""

import math
from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass

from vllm_megamoe.numerics.clamp import no_clamp
from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts
from vllm_megamoe.plan.verdict import Rejected, Violation
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile

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
    return ActivationPlan("swiglu", no_clamp(facts.limit))


def _swiglustep(facts: ActivationFacts) -> ActivationPlan:
    # Without a limit, min(silu(g), inf) * u is plain SwiGLU, which every revision has.
    limit = no_clamp(facts.limit)
    return ActivationPlan("swiglu" if limit is None else "swiglustep", limit)


def _swigluoai(facts: ActivationFacts) -> ActivationPlan:
    alpha = _OAI_ALPHA if facts.alpha is None else facts.alpha
    beta = _OAI_BETA if facts.beta is None else facts.beta
    return ActivationPlan("swigluoai", no_clamp(facts.limit), (("alpha", alpha), ("beta", beta)))


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


def plan_activation(facts: ActivationFacts) -> ActivationPlan | None:
    """The operator's activation, or None when it has none for this one."""
    row = ACTIVATIONS.get(facts.name)
    return None if row is None else row(facts)


def names_on(profile: Profile) -> list[str]:
    """vLLM's names of the activations that the profile takes; without a limit swiglustep is swiglu, which all take."""
    taken, some = limits_of(profile).activations.value, ActivationFacts(limit=7.0)
    return [name for name, row in ACTIVATIONS.items() if row(some).name in taken]


def activation_of(layer: MoeFacts, profile: Profile) -> ActivationPlan | Rejected[None]:
    """The layer's activation, or why the operator cannot compute it on any product."""
    plan = plan_activation(layer.activation)
    if plan is None:
        name = layer.activation.name
        remedy = (
            f"The operator has {', '.join(limits_of(profile).activations.value)} here: if this is one of them by "
            f"another name, add a row {name!r} to ACTIVATIONS in vllm_megamoe/plan/activation.py; else serve this "
            "model without --quantization megamoe."
        )
        expected = f"one of {', '.join(names_on(profile))}"
        return Rejected(Violation(layer.name, f"activation {name!r}", expected, remedy), draft=None)
    wrong = _wrong_numbers(plan)
    if wrong:
        remedy = "Correct the model's config: these are numbers of its activation."
        return Rejected(Violation(layer.name, f"{plan.name} with {wrong[0]}", wrong[1], remedy), draft=None)
    return plan


def _wrong_numbers(plan: ActivationPlan) -> tuple[str, str] | None:
    """What came and what was expected, for numbers that the operator takes on no product (operator_readme.txt:509)."""
    if plan.clamp is not None and not plan.clamp > 0:
        return f"a limit of {plan.clamp!r}", "a number above 0, or none"
    for name, value in plan.params:
        if not math.isfinite(c_float(value).value):
            return f"{name} = {value!r}", "a finite float32"
        if plan.name == "situglu" and not c_float(value).value > 0:
            return f"{name} = {value!r}", "a number above 0"
    return None
