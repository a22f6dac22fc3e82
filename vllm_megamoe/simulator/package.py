"""`cann_ops_transformer.ops` as its Python wrapper looks to a caller: the module's two functions and its SymmBuffer.

Names, order and defaults of a revision's functions are those of the argument table that it knows (ops.arguments):
release 9.1.0 as in torch_api.txt, the newer source with what came until 2026-08 (op wrapper mega_moe.py).
"""

import inspect
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.numerics.activations import PARAMETERS
from vllm_megamoe.ops.arguments import CALL, CREATE, Argument
from vllm_megamoe.ops.buffer import WRAPPERS_DTYPES
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.window import operator_helper
from vllm_megamoe.simulator.communicator import Communicators, Memory
from vllm_megamoe.simulator.host import OperatorArguments, check_buffer, type_name
from vllm_megamoe.simulator.kernel.read import refuse
from vllm_megamoe.simulator.kernel.run import npu_mega_moe


def make_operators(profile: Profile, communicators: Communicators) -> ModuleType:
    """The package's module for a product, over the communicators of this process."""

    def create(arguments: Mapping[str, Any]) -> SymmBuffer:
        """A buffer on the group's communicator."""
        return open_buffer(profile, communicators, **arguments)

    def run(arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """One layer."""
        given = dict(arguments)
        buffer = given.pop("sym_buffer")
        try:
            if "activation_params" in given:
                check_activation(given["activation"], given["activation_params"])
                given["activation_params"] = given["activation_params"] or {}
            said = {argument.schema: given[argument.name] for argument in CALL if argument.name in given}
            native = OperatorArguments(**said, **of_buffer(buffer))
        except (ValueError, RuntimeError) as error:
            if isinstance(buffer, SymmBuffer):
                refuse(buffer.context, error)
            raise
        return npu_mega_moe(profile, native)

    ops = ModuleType("cann_ops_transformer.ops", "Simulated by vllm_megamoe.simulator.")
    for table, body in ((CREATE, create), (CALL, run)):
        function = _with_signature(table, profile.revision, body)
        setattr(ops, function.__name__, function)
    return ops


def _with_signature(
    table: tuple[Argument, ...], revision: str, body: Callable[[Mapping[str, Any]], Any]
) -> Callable[..., Any]:
    """A function that takes what the revision's wrapper takes: a foreign keyword is a TypeError, as on a device."""
    known = [argument for argument in table if argument.since in ("9.1", revision)]
    signature = inspect.Signature(
        [
            inspect.Parameter(argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            if argument.is_required
            else inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=argument.default)
            for argument in known
        ]
    )

    def function(*positional: Any, **named: Any) -> Any:
        bound = signature.bind(*positional, **named)
        bound.apply_defaults()
        return body(bound.arguments)

    function.__name__ = table[0].function
    function.__doc__ = body.__doc__
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def check_activation(activation: str, params: Mapping[str, float] | None) -> None:
    """As the newer wrapper does before the extension is called.

    Raises:
        ValueError: an unknown name or key.
    """
    if activation not in PARAMETERS:
        raise ValueError(f"Unsupported activation: {activation!r}; expected one of {sorted(PARAMETERS)}.")
    allowed = sorted(set(PARAMETERS[activation]) - {"clamp"})
    for key in params or {}:
        if key not in allowed:
            raise ValueError(
                f"Unknown activation param key {key!r} for activation {activation!r}; allowed keys: {allowed}."
            )


class SymmBuffer:
    """What `get_symm_buffer_for_mega_moe` returns on a device: plain attributes, read at every call.

    Attributes:
        context, ccl_buffer_size: of the communicator; bytes.
        topo_type, rank_num_per_server: of the newer revision only.
        The others as given.
    """

    context: torch.Tensor
    ccl_buffer_size: int

    def __init__(self, group: ProcessGroup, name: str, arguments: Mapping[str, Any]) -> None:
        self.group = group
        self.rank_id: int = group.rank()
        self.group_name = name
        self.ep_world_size: int = group.size()
        self._memory: Memory | None = None
        for name, value in arguments.items():
            setattr(self, name, value)

    def take(self, context: torch.Tensor, ccl_bytes: int, memory: Memory | None) -> None:
        """What the communicator gave; a buffer that nobody holds any more frees its memory (op ~CommContextManager)."""
        self.context, self.ccl_buffer_size, self._memory = context, ccl_bytes, memory
        if memory is not None:
            weakref.finalize(self, memory.free)

    def destroy(self) -> None:
        """Frees the memory on 950; does nothing on A2/A3."""
        if self._memory is not None:
            self._memory.free()


def open_buffer(profile: Profile, communicators: Communicators, group: ProcessGroup, **arguments: Any) -> SymmBuffer:
    """Create a buffer as the wrapper's constructor does.

    Raises:
        RuntimeError: no communicator, or a value that the size function rejects.
        TypeError: an out dtype that the wrapper does not know.
    """
    communicator = communicators.find(group)
    _check_out_dtype(arguments["dispatch_quant_out_dtype"])
    said = {name: value for name, value in arguments.items() if name != "intermediate_hidden"}
    said["dispatch_quant_out_dtype"] = type_name(arguments["dispatch_quant_out_dtype"])
    facts = BufferFacts(ep_world_size=group.size(), rank_num_per_server=group.size(), **said)
    check_buffer(profile, facts)
    if profile.revision != "9.1":
        arguments |= {"topo_type": 0, "rank_num_per_server": group.size()}
    buffer = SymmBuffer(group, communicator.name, arguments)
    expected = operator_helper(profile, facts).value if profile.is_950 else 0
    buffer.take(*communicator.open(expected))
    return buffer


def of_buffer(buffer: SymmBuffer) -> dict[str, Any]:
    """The arguments that a call takes from its buffer, as they are now."""
    own = {name: getattr(buffer, name) for name in ("context", "ep_world_size", "ccl_buffer_size")}
    return own | {a.schema: getattr(buffer, a.name) for a in CREATE if a.schema and hasattr(buffer, a.name)}


def _check_out_dtype(value: Any) -> None:
    """The wrapper's own table; a number passes."""
    if value is None or isinstance(value, int):
        return
    if not isinstance(value, torch.dtype):
        raise TypeError(f"dispatch_quant_out_dtype must be torch.dtype or int, got {type(value)}.")
    if value not in WRAPPERS_DTYPES:
        raise TypeError(f"Unsupported dispatch_quant_out_dtype: {value}.")
