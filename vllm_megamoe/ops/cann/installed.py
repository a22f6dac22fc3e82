"""What of the operator this machine has: the package and its two functions, their revision, and the product.

The package has no version that tells: releases between two of CANN differ in the keywords that its functions take, and
the rules of a product follow the source that has them (profiles.profile, REVISIONS). Under simulation all of it is the
simulator's.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops.arguments import CALL, CREATE, Argument
from vllm_megamoe.profiles.profile import Product, Revision

if TYPE_CHECKING:
    from vllm_megamoe.simulator.device import Device

PACKAGE = "cann_ops_transformer.ops"

PROCESSORS: tuple[tuple[str, Product], ...] = (("Ascend910_93", "a3"), ("Ascend910B", "a2"), ("Ascend950", "950"))
"""How the processor's name begins (op wrapper mega_moe.py, table of backends) -> product."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The operator of this machine.

    Attributes:
        create, run: its two functions.
        create_names, run_names: the keywords they take.
    """

    create: Callable[..., Any]
    run: Callable[..., Any]
    create_names: frozenset[str]
    run_names: frozenset[str]


@cache
def installed() -> Installed:
    """Import the operator; its extension may be compiled at this point."""
    # Loaded first: the operator's tensors and process groups are torch_npu's.
    _module("torch_npu")
    ops = _module(PACKAGE)
    create, run = ops.get_symm_buffer_for_mega_moe, ops.mega_moe
    return Installed(create, run, _keywords(create), _keywords(run))


def npu_is_present() -> bool:
    """Whether torch_npu finds a device."""
    torch_npu = importlib.import_module("torch_npu")
    return bool(torch_npu.npu.is_available())


def simulated_device(name: str) -> "Device":
    """The simulated device of that profile."""
    # Loaded only where it is used: the simulator stands on the twin, which a device's path must not need.
    from vllm_megamoe.simulator.device import device

    return device(name)


def _module(name: str) -> ModuleType:
    """The installed package, or its simulated counterpart."""
    simulated = simulated_profile()
    return simulated_device(simulated).modules[name] if simulated else importlib.import_module(name)


def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


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


def installed_product() -> Product:
    """The product of NPU 0, the simulated one where one is simulated.

    Raises:
        ConfigError: a processor that the operator does not run on.
    """
    simulated = simulated_profile()
    name = "" if simulated else str(importlib.import_module("torch_npu").npu.get_device_name(0))
    for start, product in PROCESSORS:
        if name.startswith(start) or simulated.startswith(f"{product}@"):
            return product
    expected = ", ".join(start for start, _ in PROCESSORS)
    raise ConfigError(
        f"product: torch_npu calls NPU 0 {name!r}; expected a name that begins with one of {expected}: the operator "
        "mega_moe exists on Atlas A2, Atlas A3 and Ascend 950."
    )
