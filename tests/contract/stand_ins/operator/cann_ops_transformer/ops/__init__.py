"""The two functions, of the product and revision that VLLM_MEGAMOE_SIMULATED_NPU names."""

import os

from asked import note

from vllm_megamoe.simulator import device

_module = device(os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]).modules["cann_ops_transformer.ops"]
get_symm_buffer_for_mega_moe = _module.get_symm_buffer_for_mega_moe
mega_moe = _module.mega_moe


def __getattr__(name: str) -> object:
    if not name.startswith("__"):
        note(f"cann_ops_transformer.ops.{name}")
    raise AttributeError(f"the stand-in for cann_ops_transformer.ops has no {name!r}")
