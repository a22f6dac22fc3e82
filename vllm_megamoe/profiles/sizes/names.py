"""Use cases by name."""

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


def known_use_case(name: str) -> UseCase:
    """The use case of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return UseCase(name)
    except ValueError:
        raise ConfigError(f"use_case={name!r}; wanted one of {', '.join(UseCase)}.") from None


def use_case_on(profile: Profile, name: str) -> UseCase:
    """The same, if the profile's product runs it.

    Raises:
        ConfigError: it does not, or there is no such use case.
    """
    use_case = known_use_case(name)
    products = USE_CASES[use_case].products
    if profile.product != "none" and profile.product not in products:
        raise ConfigError(
            f"use_case={name!r} with profile {profile.name!r}; {profile.product} has no such scenario "
            f"(operator_readme.txt, scenario tables). It runs on {', '.join(sorted(products))}."
        )
    return use_case
