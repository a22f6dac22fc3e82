"""A profile: the product and operator revision whose limits hold, and on 950 the topology of the communicator."""

from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.errors import ConfigError

Product = Literal["none", "a2", "a3", "950"]
Revision = Literal["none", "9.1", "9.2"]
Topology = Literal["mte", "urma"]

PROFILE_NAMES = ("none", "a2@9.1", "a3@9.1", "950@9.1", "a2@9.2", "a3@9.2", "950@9.2")

REVISIONS = (
    "9.1 is CANN 9.1.0, 9.2 the operator source of 2026-08-21; CANN 9.2.0 itself (2026-09-30) has not been read yet"
)
"""What the names of profiles mean, said wherever a profile is shown."""

# Products that the operator's documents exclude (operator_readme.txt and torch_api.txt, product tables), as users spell
# them: device names, SoC names and the inference and training cards older than Atlas A2.
UNSUPPORTED = ("310", "310p", "200i", "500", "910", "910a", "a1")


@dataclass(frozen=True, slots=True)
class Profile:
    """Which limits hold.

    Attributes:
        name: one of PROFILE_NAMES.
        product: `a2`, `a3`, `950`, or `none` for the twin with all that the documents describe.
        revision: see REVISIONS; 9.1 follows torch_api.txt and the 9.1.0 branch, 9.2 operator_readme.txt and the newest
            source.
        topology: of a 950 communicator, `mte` inside one UB domain, `urma` across super-nodes; `mte` elsewhere.
    """

    name: str
    product: Product
    revision: Revision
    topology: Topology = "mte"

    @property
    def is_a2_a3(self) -> bool:
        """Whether the arch22 operator runs, with the communicator's window."""
        return self.product in ("a2", "a3")

    @property
    def is_950(self) -> bool:
        """Whether the arch35 operator runs, with memory of its own."""
        return self.product == "950"


def is_unsupported(name: str) -> bool:
    """Whether a name is that of a product that the operator's documents exclude."""
    product = name.split("@")[0].lower().removeprefix("atlas").removeprefix("ascend").strip(" -_")
    return product in UNSUPPORTED or product.startswith(("310", "200i", "300i", "300v", "500"))


def find_profile(name: str, topology: str = "auto") -> Profile:
    """The profile of that name.

    Args:
        name: one of PROFILE_NAMES.
        topology: `auto` (as the communicator says; `mte` where none is), `mte` or `urma` (950 only).

    Raises:
        ConfigError: an unknown name, a product that the operator does not support, or `urma` on another product.
    """
    if name not in PROFILE_NAMES:
        known = ", ".join(PROFILE_NAMES)
        if is_unsupported(name):
            raise ConfigError(
                f"profile={name!r}: the operator mega_moe does not exist on this product (operator_readme.txt and "
                f"torch_api.txt, supported products: Atlas A2, Atlas A3, Ascend 950). Choose one of {known}."
            )
        raise ConfigError(f"profile={name!r}; expected one of {known}.")
    if topology not in ("auto", "mte", "urma"):
        raise ConfigError(f"topology={topology!r}; expected 'auto', 'mte' or 'urma'.")
    if name == "none":
        return Profile("none", "none", "none", "urma" if topology == "urma" else "mte")
    product, revision = name.split("@")
    if topology == "urma" and product != "950":
        raise ConfigError(f"topology='urma' with profile {name!r}; only Ascend 950 has it. Drop topology.")
    chosen: Topology = "urma" if topology == "urma" else "mte"
    return Profile(name, product, revision, chosen)  # type: ignore[arg-type]
