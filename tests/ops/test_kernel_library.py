"""The library that kernels are made with stands in no one's way: a process may start a second engine."""

import importlib
import sys

from vllm_megamoe.ops.twin.kernels import build


def test_a_look_at_every_module_finds_dictionaries_alone() -> None:
    """What vLLM does when an engine's worker starts (triton_utils/dispatcher.py)."""
    assert build.why_not() == "" or "llvmlite" in build.why_not()
    for module in [m for name, m in sys.modules.items() if name.startswith("llvmlite")]:
        for value in vars(module).values():
            if hasattr(value, "__dict__"):
                vars(value).get("kernel")


def test_functions_of_the_library_are_still_there() -> None:
    if build.why_not() == "":
        assert importlib.import_module("llvmlite.binding").llvm_version_info[0] > 10
