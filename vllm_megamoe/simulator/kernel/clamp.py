"""The activation's clamp as each product executes it."""

from dataclasses import replace

from vllm_megamoe.numerics.activations import FLT_MAX, Activation
from vllm_megamoe.profiles.profile import Profile


def device_activation(activation: Activation, clamp: float | None, profile: Profile) -> Activation:
    """The activation that the product computes for `activation_clamp=clamp`.

    A2/A3 take 0 for no clamp; 950 executes 0 like any other number in the newer source and has no clamp at all in
    9.1.0 (op kernels arch22 and arch35). situglu has none anywhere.
    """
    if not profile.is_950 or activation.name == "situglu":
        return activation
    if profile.revision == "9.1":
        return replace(activation, clamp=None)
    return replace(activation, clamp=FLT_MAX if clamp is None else clamp)
