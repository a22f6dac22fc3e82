"""The activation's clamp as each product executes it."""

from dataclasses import replace

from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.profiles.profile import Profile


def read_clamp(activation: str, clamp: float | None, profile: Profile) -> float | None:
    """The clamp that reaches the kernel: none for situglu, whose wrapper drops it, and none on 950 in 9.1.0."""
    return None if activation == "situglu" or profile.name == "950@9.1" else clamp


def device_activation(activation: Activation, clamp: float | None, profile: Profile) -> Activation:
    """The activation that the product computes.

    Args:
        activation: as the documents define it, with 0 for no clamp.
        clamp: of `read_clamp`.
        profile: A2/A3 take 0 for no clamp too; 950 executes 0 like any other number in the newer source, and has no
            clamp at all in 9.1.0, not even that of infinities (op kernels arch22 and arch35).
    """
    if not profile.is_950:
        return activation
    if profile.revision == "9.1":
        return replace(activation, clamp=None)
    return replace(activation, clamp=0.0) if clamp == 0 else activation
