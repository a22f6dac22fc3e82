"""Product and operator revision of this machine: derived, never asked for."""

from contextlib import suppress

from vllm_megamoe.environment import PROFILE, PROFILE_VARIABLE, simulated_profile
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops.cann.installed import installed_revision
from vllm_megamoe.plan.options import Options
from vllm_megamoe.profiles.profile import PROFILE_NAMES

PRODUCTS = {"A2": "a2", "A3": "a3", "A5": "950"}
"""vllm-ascend's device types that have the operator (device/hardware.py, AscendDeviceType)."""


def built_for() -> str:
    """The product that the installed vllm-ascend was built for.

    Raises:
        ConfigError: the operator does not exist on it.
    """
    from vllm_ascend.device.device_config import get_ascend_device_type

    device_type = get_ascend_device_type().name
    product = PRODUCTS.get(device_type)
    if product is None:
        raise ConfigError(
            f"product: vllm-ascend was built for {device_type}; expected one of {', '.join(PRODUCTS)}: the operator "
            "mega_moe exists on Atlas A2, Atlas A3 and Ascend 950. Drop --quantization megamoe."
        )
    return product


def confirm(planned: str) -> None:
    """Look at the NPU of this process, and at its operator: they must be those that the plan was made for.

    Raises:
        ConfigError: they are not.
    """
    from vllm_ascend.device.device_config import check_ascend_device_type

    try:
        check_ascend_device_type()
    except RuntimeError as error:
        raise ConfigError(f"product: {error} Install the vllm-ascend of this NPU.") from error
    found = installed_profile(built_for())
    if found != planned:
        raise ConfigError(
            f"profile: this worker has {found}, the plan was made for {planned}; expected the same NPU and operator "
            "package on every host and in every container of the deployment."
        )


def installed_profile(product: str) -> str:
    """The profile of a product with the operator that is installed; VLLM_MEGAMOE_SIMULATE gives both.

    Raises:
        ConfigError: no operator, or one that no profile describes.
    """
    simulated = simulated_profile()
    if simulated:
        return simulated
    found = f"{product}@{installed_revision()}"
    if found not in PROFILE_NAMES:
        raise ConfigError(f"operator: {found} on this machine; expected one of {', '.join(PROFILE_NAMES[1:])}.")
    return found


def contradicted(options: Options, found: str) -> list[str]:
    """A sentence for each profile that the user has named and that this machine is not."""
    named = {"additional_config['megamoe']: profile": options.profile}
    with suppress(ConfigError):  # the config stage names a wrong value itself
        named[PROFILE_VARIABLE] = PROFILE.read()
    return [
        f"{where} = {name!r}; expected {found!r}, which this machine is (its NPU and the installed operator). Leave it "
        "out: on an NPU the profile follows from the machine."
        for where, name in named.items()
        if name and name != found
    ]
