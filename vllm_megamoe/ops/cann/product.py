"""Which product this machine's NPU belongs to, told by the name that torch_npu gives its processor."""

import importlib

from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import Product

PROCESSORS: tuple[tuple[str, Product], ...] = (("Ascend910_93", "a3"), ("Ascend910B", "a2"), ("Ascend950", "950"))
"""How the processor's name begins (op wrapper mega_moe.py, table of backends) -> product."""


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
