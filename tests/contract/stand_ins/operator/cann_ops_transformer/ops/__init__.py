"""The two functions, of the product and revision that VLLM_MEGAMOE_SIMULATED_NPU names."""

import functools
import os
from collections.abc import Callable
from typing import Any

from asked import leave, note

from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.simulator import device

_module = device(os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]).modules["cann_ops_transformer.ops"]


def _left(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; each call leaves its name, the place of its first weight, which tells the layer, and its rows."""

    @functools.wraps(function)  # others read the signature
    def called(*arguments: Any, **options: Any) -> Any:
        given = options | dict(zip(function.__signature__.parameters, arguments, strict=False))  # type: ignore[attr-defined]
        weights = given.get("l1_weights")
        layer = inner(weights[0]).data_ptr() if weights else 0
        leave("calls", f"{function.__name__} {layer} {len(given['x']) if 'x' in given else 0}")
        return function(*arguments, **options)

    return called


get_symm_buffer_for_mega_moe = _left(_module.get_symm_buffer_for_mega_moe)
mega_moe = _left(_module.mega_moe)


def __getattr__(name: str) -> object:
    if not name.startswith("__"):
        note(f"cann_ops_transformer.ops.{name}")
    raise AttributeError(f"the stand-in for cann_ops_transformer.ops has no {name!r}")
