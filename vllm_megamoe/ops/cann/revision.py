"""Which revision of the operator is installed, told by the keywords that its two functions take.

The package has no version that tells: releases between two of CANN differ in their signatures, and the rules of a
product follow the source that has them (profiles.profile, REVISIONS).
"""

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops.arguments import CALL, CREATE, Argument
from vllm_megamoe.ops.cann.adapter import PACKAGE, Installed, installed
from vllm_megamoe.profiles.profile import Revision


def installed_revision() -> Revision:
    """That of this machine, real or simulated.

    Raises:
        ConfigError: the package is absent or cannot be imported, or is older than every known revision.
    """
    try:
        found = installed()
    except ImportError as error:
        raise ConfigError(
            f"operator: {PACKAGE} cannot be imported ({error}); expected the CANN operator package with mega_moe. "
            "Install the cann_ops_transformer of this CANN release and source its set_env.sh."
        ) from error
    return revision_of(found)


def revision_of(found: Installed) -> Revision:
    """The newest revision whose every argument the functions have.

    Raises:
        ConfigError: some argument of the oldest one is missing.
    """
    lacking = _lacking(found, "9.1")
    if lacking:
        raise ConfigError(
            f"operator: {PACKAGE} of this installation lacks {', '.join(lacking)}; expected the functions of CANN "
            "9.1.0 or newer. Install a newer operator package."
        )
    return "9.1" if _lacking(found, "9.2") else "9.2"


def _lacking(found: Installed, since: str) -> list[str]:
    def missing(table: tuple[Argument, ...], names: frozenset[str]) -> list[str]:
        return [argument.name for argument in table if argument.since == since and argument.name not in names]

    return missing(CREATE, found.create_names) + missing(CALL, found.run_names)
