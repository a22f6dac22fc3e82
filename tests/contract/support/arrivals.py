"""What the operator's extension gets from the real Python wrapper, compared with what was meant.

Names are the revision's own: the positions in which its wrapper hands arguments to the extension, read from its source,
and the names of its registered schema.
"""

import ast
import inspect
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.ops import SymmBuffer
from vllm_megamoe.ops.arguments import CALL, CREATE, tensors_of
from vllm_megamoe.simulator.install.extensions import OperatorExtension

ENUM = {torch.int8: 1, torch.float8_e5m2: 23, torch.float8_e4m3fn: 24}
"""torch's numbers of dtypes (c10/core/ScalarType.h), which its dispatcher puts where a schema wants a number."""
FLT_MAX = 3.4028234663852886e38


class Arrivals:
    """Watches the extension from its making on.

    Attributes:
        names: of the extension's arguments, in the wrapper's order.
        schema: of the operator's arguments, in the schema's order.
        modules: how many modules of the package were imported.
    """

    def __init__(self) -> None:
        wrapper = import_module("cann_ops_transformer.ops.mega_moe")
        import_module("cann_ops_transformer")
        self.names = _names_of_call(inspect.getsource(wrapper))
        operator = torch.ops.cann_ops_transformer.npu_mega_moe.default
        self.schema = [argument.name for argument in operator._schema.arguments]
        self.modules = len([name for name in sys.modules if name.split(".")[0] == "cann_ops_transformer"])
        self._meant: dict[str, Any] = {}
        self._wrong: list[str] = []
        self._calls = 0
        original = OperatorExtension.npu_mega_moe

        def watched(extension: OperatorExtension, *arguments: Any) -> Any:
            self._look(arguments)
            return original(extension, *arguments)

        OperatorExtension.npu_mega_moe = watched  # type: ignore[method-assign]

    def expect(self, buffer: SymmBuffer, given: dict[str, Any]) -> None:
        """What the next call means, by the schema's names."""
        self._wrong, self._calls = [], 0 if buffer.context is not None else self._calls
        if buffer.context is None:
            return  # the twin's: nothing of it reaches the extension
        meant = {argument.schema: getattr(buffer, argument.name) for argument in CREATE if argument.schema}
        for argument in CALL:
            value = given.get(argument.name, argument.default)
            meant[argument.schema] = tensors_of(value) if argument.kind in ("weights", "side") and value else value
        meant |= {name: getattr(buffer, name) for name in ("context", "ep_world_size", "ccl_buffer_size")}
        meant |= {"topo_type": 0, "rank_num_per_server": 2}
        meant["activation_params_list"] = _list_of(given)
        out = meant["dispatch_quant_out_dtype"]
        meant["dispatch_quant_out_dtype"] = ENUM.get(out, out)
        self._meant = meant

    def wrong(self) -> list[str]:
        """What did not arrive as it was meant; and whether exactly one call came."""
        calls = [] if self._calls == 1 else [f"{self._calls} calls arrived"]
        return self._wrong + calls

    def _look(self, arguments: tuple[Any, ...]) -> None:
        self._calls += 1
        if len(arguments) != len(self.names):
            self._wrong.append(f"{len(arguments)} arguments; expected {len(self.names)}")
        for name, arrived in zip(self.names, arguments, strict=False):
            meant = self._meant[name]
            if not _same(arrived, meant):
                self._wrong.append(f"{name}={arrived!r}; expected {meant!r}")


def _list_of(given: dict[str, Any]) -> list[float]:
    """activation_clamp and activation_params as one list (operator_readme.txt, activationParams)."""
    name, params = given.get("activation", "swiglu"), given.get("activation_params") or {}
    clamp = given.get("activation_clamp")
    if name == "situglu":
        return [params["beta"], *([params["linear_beta"]] if "linear_beta" in params else [])]
    first = FLT_MAX if clamp is None else clamp
    return [first, params["alpha"], params["beta"]] if name == "swigluoai" else [first]


def _same(arrived: Any, meant: Any) -> bool:
    """The same memory in the same format, or an equal number; an empty list and none say the same."""
    if isinstance(arrived, Tensor) and isinstance(meant, Tensor):
        alike = (arrived.shape, arrived.dtype, format_of(arrived)) == (meant.shape, meant.dtype, format_of(meant))
        return alike and inner(arrived).data_ptr() == inner(meant).data_ptr()
    if isinstance(arrived, list) and isinstance(meant, list):
        return len(arrived) == len(meant) and all(_same(*pair) for pair in zip(arrived, meant, strict=True))
    return not isinstance(arrived, Tensor | list) and not isinstance(meant, Tensor | list) and bool(arrived == meant)


def _names_of_call(source: str) -> list[str]:
    """Arguments of `_op_module.npu_mega_moe(...)` as the wrapper's source names them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "npu_mega_moe":
            names = [argument.id for argument in node.args if isinstance(argument, ast.Name)]
            if "context" in names:
                return names
    raise AssertionError("the wrapper's source has no call of the extension's npu_mega_moe")
