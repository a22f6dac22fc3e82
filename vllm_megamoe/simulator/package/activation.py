"""Names of activations and of their parameters, which the newer wrapper checks itself."""

from collections.abc import Mapping

KEYS: dict[str, frozenset[str]] = {
    "swiglu": frozenset(),
    "swiglustep": frozenset(),
    "swigluoai": frozenset({"alpha", "beta"}),
    "situglu": frozenset({"beta", "linear_beta"}),
}


def check_activation(activation: str, params: Mapping[str, float] | None) -> None:
    """As the wrapper does before the extension is called.

    Raises:
        ValueError: an unknown name or key.
    """
    if activation not in KEYS:
        raise ValueError(f"Unsupported activation: {activation!r}; expected one of {sorted(KEYS)}.")
    for key in params or {}:
        if key not in KEYS[activation]:
            raise ValueError(
                f"Unknown activation param key {key!r} for activation {activation!r}; allowed keys: "
                f"{sorted(KEYS[activation])}."
            )
