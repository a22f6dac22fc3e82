"""Functions as the modules that callers import them from."""

from collections.abc import Callable
from types import ModuleType
from typing import Any


def as_module(create: Callable[..., Any], run: Callable[..., Any]) -> ModuleType:
    """The two functions as the package's module."""
    ops = ModuleType("cann_ops_transformer.ops", "Simulated by vllm_megamoe.simulator.")
    for function in (create, run):
        setattr(ops, function.__name__, function)
    return ops
