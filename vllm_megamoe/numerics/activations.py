"""The operator's four gated activations in float32 (operator_readme.txt, activation formulas).

The gate is clamped from above, the up value on both sides; HEAD's Python wrapper checks names and keys the same way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vllm_megamoe.numerics.clamp import no_clamp

Name = Literal["swiglu", "swiglustep", "swigluoai", "situglu"]

_KEYS: dict[str, frozenset[str]] = {
    "swiglu": frozenset(),
    "swiglustep": frozenset(),
    "swigluoai": frozenset({"alpha", "beta"}),
    "situglu": frozenset({"beta", "linear_beta"}),
}
FLT_MAX = torch.finfo(torch.float32).max
"""Default clamp of both documents: it bounds infinities and nothing else."""

_DEFAULTS: dict[str, dict[str, float]] = {"swigluoai": {"alpha": 1.702, "beta": 1.0}, "situglu": {"beta": 1.0}}


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
        activation_params: Mapping[str, float] | None = None,
    ) -> "Activation":
        """Read the arguments of `mega_moe`.

        Raises:
            ValueError: an unknown activation or parameter, a negative or NaN clamp, a parameter that is not finite, or
                one of `situglu` that is not above 0 (operator_readme.txt; HEAD's tiling rejects only 0).
        """
        if activation not in _KEYS:
            raise ValueError(f"activation={activation!r}; expected one of {', '.join(get_args(Name))}.")
        given = dict(activation_params or {})
        if unknown := sorted(set(given) - _KEYS[activation]):
            allowed = ", ".join(sorted(_KEYS[activation])) or "none"
            raise ValueError(f"activation_params has {unknown}; {activation} takes {allowed}.")
        if activation_clamp is not None and not activation_clamp >= 0:
            raise ValueError(f"activation_clamp={activation_clamp!r}; expected a number of at least 0, or None.")
        params = {**_DEFAULTS.get(activation, {}), **given}
        for key, value in params.items():
            if not _is_finite(value) or (activation == "situglu" and value <= 0):
                expected = "finite number above 0" if activation == "situglu" else "finite number"
                raise ValueError(f"activation_params[{key!r}]={value!r}; {activation} wants a {expected}.")
        clamp = FLT_MAX if activation_clamp is None else activation_clamp
        limit = None if activation == "situglu" else no_clamp(clamp)
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


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)) in float32, the kernels' form of x * sigmoid(x)."""
    return x / (1.0 + torch.exp(-x))
