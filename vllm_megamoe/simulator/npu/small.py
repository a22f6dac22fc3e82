"""The part of `torch_npu` that the operator's adapter and the layouts ask for; nothing of torch is touched."""

from types import ModuleType, SimpleNamespace

from vllm_megamoe.simulator.npu.formats import Formats


def make_small_torch_npu() -> ModuleType:
    """A module that stands in no import path."""
    module = ModuleType("torch_npu", "Simulated by vllm_megamoe.simulator.")
    formats = Formats(allowed=False)
    names = {
        "npu_format_cast": formats.npu_format_cast,
        "get_npu_format": formats.get_npu_format,
        "npu": SimpleNamespace(is_available=lambda: True, config=formats.config),
    }
    for name, value in names.items():
        setattr(module, name, value)
    return module
