"""The operator's four gated activations in float32 (operator_readme.txt, activation formulas).

The gate is clamped from above, the up value on both sides; HEAD's Python wrapper checks names and keys the same way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.numerics.clamp import no_clamp

PARAMETERS: dict[str, tuple[str, ...]] = {
    "swiglu": ("clamp",),
    "swiglustep": ("clamp",),
    "swigluoai": ("clamp", "alpha", "beta"),
    "situglu": ("beta", "linear_beta"),
}
"""Activation -> its numbers, in the order of the list form of `activation_params` (operator_readme.txt)."""

FLT_MAX = torch.finfo(torch.float32).max
"""Default clamp of both documents: it bounds infinities and nothing else."""

_LENGTHS = {"swiglu": (0, 1), "swiglustep": (0, 1), "swigluoai": (0, 3), "situglu": (0, 1, 2)}
_DEFAULTS: dict[str, dict[str, float]] = {"swigluoai": {"alpha": 1.702, "beta": 1.0}, "situglu": {"beta": 1.0}}
_SOURCE = "(operator_readme.txt, activation_params)"


def named_parameters(activation: Any, clamp: Any, params: Any) -> tuple[float | None, dict[str, float]]:
    """Clamp and named parameters of a call, from either form of `activation_params`; their values are not judged.

    Args:
        activation, clamp, params: `activation`, `activation_clamp` and `activation_params` of `mega_moe`: params as a
            mapping (op wrapper mega_moe.py) or as the document's list, whose first number is the clamp where the
            activation has one.

    Raises:
        OperatorError: anything that is no number, a list of another length than the activation's, or a clamp that is
            given twice.
    """
    if not isinstance(activation, str):
        raise _unknown(activation)
    limit = None if clamp is None else _number("activation_clamp", clamp)
    if params is None or isinstance(params, Mapping):
        return limit, {str(key): _number(f"activation_params[{key!r}]", value) for key, value in (params or {}).items()}
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise OperatorError(
            f"activation_params={params!r}; expected None, a mapping of names to numbers, or a list of numbers "
            f"{_SOURCE}. Pass {{'alpha': 1.702, 'beta': 1.0}} for swigluoai, say."
        )
    if activation not in PARAMETERS:
        raise _unknown(activation)
    names = PARAMETERS[activation]
    if len(params) not in _LENGTHS[activation]:
        forms = " or ".join(f"[{', '.join(names[:length])}]" for length in _LENGTHS[activation])
        raise OperatorError(
            f"activation_params={list(params)!r}; expected {forms} for {activation} {_SOURCE}. Pass one of these "
            "lists, or take the activation that these numbers are for."
        )
    listed = [_number(f"activation_params[{place}]", value) for place, value in enumerate(params)]
    named = dict(zip(names, listed, strict=False))
    if "clamp" not in named:
        return limit, named
    if limit is not None:
        raise OperatorError(
            f"activation_clamp={limit!r}; expected None beside activation_params={list(params)!r}, whose first "
            f"number is the clamp {_SOURCE}. Give the clamp once."
        )
    return named.pop("clamp"), named


def _unknown(activation: Any) -> OperatorError:
    names = ", ".join(PARAMETERS)
    return OperatorError(f"activation={activation!r}; expected one of {names}. Pass activation='swiglu', say.")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OperatorError(f"{name}={value!r}; expected a number {_SOURCE}. Pass a Python float such as 7.0.")
    return float(value)


def as_float32(value: float) -> float:
    """The number that the operator's float32 attributes hold: 1e-50 is 0 there, and 1e39 is infinite."""
    return torch.tensor(value, dtype=torch.float64).to(torch.float32).item()


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation with every parameter filled in.

    Attributes:
        name: `swiglu`, `swiglustep`, `swigluoai` or `situglu`.
        clamp: limit c of gate and up, FLT_MAX where the call gave none, None where 0 switches it off; `situglu` has
            no clamp.
        alpha, beta: of `swigluoai`; beta also of `situglu`.
        linear_beta: of `situglu`, None for a linear up branch.
    """

    name: str
    clamp: float | None = FLT_MAX
    alpha: float | None = None
    beta: float | None = None
    linear_beta: float | None = None

    @classmethod
    def of(
        cls,
        activation: str = "swiglu",
        activation_clamp: float | None = None,
        activation_params: Mapping[str, float] | Sequence[float] | None = None,
    ) -> "Activation":
        """Read the arguments of `mega_moe`.

        Raises:
            OperatorError: see `named_parameters`; an unknown activation or parameter, a clamp that the activation does
                not have, a negative or NaN one, a parameter that is not finite in float32, or one of `situglu` that is
                not above 0 (operator_readme.txt; HEAD's tiling rejects only 0).
        """
        given_clamp, given = named_parameters(activation, activation_clamp, activation_params)
        if activation not in PARAMETERS:
            raise _unknown(activation)
        allowed = [name for name in PARAMETERS[activation] if name != "clamp"]
        if unknown := sorted(set(given) - set(allowed)):
            takes = f"only {', '.join(allowed)}" if allowed else "nothing"
            raise OperatorError(
                f"activation_params has {', '.join(unknown)}; expected {takes} for {activation} {_SOURCE}. "
                "Leave the others out; a clamp goes into activation_clamp."
            )
        if given_clamp is not None and "clamp" not in PARAMETERS[activation]:
            raise OperatorError(
                f"activation_clamp={given_clamp!r}; expected None: {activation} has no clamp {_SOURCE}. Pass None, or "
                "take an activation that has one."
            )
        if given_clamp is not None and not given_clamp >= 0:
            raise OperatorError(
                f"activation_clamp={given_clamp!r}; expected a number of at least 0, or None {_SOURCE}. Pass None for "
                "no clamp."
            )
        params = {**_DEFAULTS.get(activation, {}), **given}
        for key, value in params.items():
            if not math.isfinite(as_float32(value)) or (activation == "situglu" and not as_float32(value) > 0):
                expected = "a finite float32 above 0" if activation == "situglu" else "a finite float32"
                default = _DEFAULTS[activation].get(key)
                remedy = f"Leave it out for {default}." if default is not None else "Leave it out for a linear branch."
                raise OperatorError(f"activation_params[{key!r}]={value!r}; expected {expected} {_SOURCE}. {remedy}")
        clamp = FLT_MAX if given_clamp is None else given_clamp
        limit = no_clamp(clamp) if "clamp" in PARAMETERS[activation] else None
        return cls(activation, limit, params.get("alpha"), params.get("beta"), params.get("linear_beta"))

    def apply(self, gate: Tensor, up: Tensor) -> Tensor:
        """float32 gate and up of one shape -> float32 of that shape."""
        if self.name == "situglu":
            beta = self.beta or 1.0
            branch = up if self.linear_beta is None else self.linear_beta * torch.tanh(up / self.linear_beta)
            return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * branch
        if self.clamp is not None:
            up = up.clamp(-self.clamp, self.clamp)
        if self.name == "swiglustep":
            value = silu(gate)
            return (value if self.clamp is None else value.clamp(max=self.clamp)) * up
        if self.clamp is not None:
            gate = gate.clamp(max=self.clamp)
        if self.name == "swiglu":
            return silu(gate) * up
        alpha, beta = self.alpha or 0.0, self.beta or 0.0
        return gate * torch.sigmoid(alpha * gate) * (up + beta)


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)) in float32, the kernels' form of x * sigmoid(x)."""
    return x / (1.0 + torch.exp(-x))
