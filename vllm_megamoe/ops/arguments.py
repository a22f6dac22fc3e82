"""Every argument of the operator's two functions, once: its name, default, kind and origin.

A public function packs what it got into one frozen value, whose fields are the table: `CreateArguments` of
`get_symm_buffer_for_mega_moe`, `CallArguments` of `mega_moe`. Both backends, the twin's custom op, the simulated
packages and the comparison of ranks read the table (`CREATE`, `CALL`); nobody else lists arguments by name.

Sources: torch_api.txt for revision 9.1, the operator's wrapper mega_moe.py of 2026-08 for 9.2, operator_readme.txt for
what came later; ranges and values from operator_readme.txt, attributes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from vllm_megamoe.acl import CODE_OFFSET, AclDtype
from vllm_megamoe.errors import LayoutError, OperatorError
from vllm_megamoe.layout.dtypes import CODES, OF_ENUM, normalise_dtype
from vllm_megamoe.layout.formatted import FormattedTensor
from vllm_megamoe.ops.rejection import rejection

Kind = Literal["group", "buffer", "whole", "text", "dtype", "tensor", "weights", "side", "number", "params"]
"""`weights` and `side` (scales, biases) are lists of tensors or one stack; only weights may be in a block format."""

Since = Literal["9.1", "9.2", "later"]
"""First operator revision with the argument; `later` ones stand in operator_readme.txt and in no source read so far."""

Function = Literal["get_symm_buffer_for_mega_moe", "mega_moe"]
DtypeArgument = torch.dtype | int | None
WeightList = Sequence[Tensor] | Tensor
REQUIRED: Any = MISSING


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    Attributes:
        name: in Python.
        function: that takes it.
        kind: what it may be.
        default: REQUIRED where there is none.
        since: operator revision.
        schema: its name in the operator's schema (op csrc, npu_mega_moe); empty where the schema has none.
        least: smallest number, None for any.
        choices: values that mean something, empty for any.
        agreed: whether all ranks must give the same (operator_readme.txt, consistency constraints).
        late: whether only a product's calls look at it, and its creation does not (op csrc, size function).
    """

    name: str
    function: Function
    kind: Kind
    default: Any
    since: Since
    schema: str
    least: int | None
    choices: tuple[int | str, ...]
    agreed: bool
    late: bool

    @property
    def is_required(self) -> bool:
        """Whether a caller must give it."""
        return self.default is REQUIRED

    def is_default(self, value: Any) -> bool:
        """Whether a value says what leaving the argument out says; None does so everywhere."""
        if value is None:
            return not self.is_required
        return isinstance(value, int | str) and not isinstance(value, bool) and bool(value == self.default)


def _is(
    kind: Kind,
    schema: str = "",
    *,
    since: Since = "9.1",
    least: int | None = None,
    choices: tuple[int | str, ...] = (),
    agreed: bool = False,
    late: bool = False,
) -> dict[str, Any]:
    """What the table says of a field beside its name and default; see `Argument`."""
    said = {"kind": kind, "since": since, "schema": schema, "least": least, "choices": choices}
    return said | {"agreed": agreed, "late": late}


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateArguments:
    """Arguments of `get_symm_buffer_for_mega_moe`, in its order; meanings there."""

    group: Any = field(metadata=_is("group"))
    num_experts: int = field(metadata=_is("whole", "moe_expert_num", least=1, agreed=True))
    num_max_tokens_per_rank: int = field(metadata=_is("whole", "num_max_tokens_per_rank", least=0, agreed=True))
    num_topk: int = field(metadata=_is("whole", least=1, agreed=True))
    hidden: int = field(metadata=_is("whole", least=1, agreed=True))
    intermediate_hidden: int = field(metadata=_is("whole", least=0))
    max_recv_token_num: int = field(default=0, metadata=_is("whole", "max_recv_token_num", least=0, agreed=True))
    dispatch_quant_mode: int = field(
        default=0, metadata=_is("whole", "dispatch_quant_mode", choices=(0, 2, 4), agreed=True)
    )
    dispatch_quant_out_dtype: DtypeArgument = field(
        default=None, metadata=_is("dtype", "dispatch_quant_out_dtype", agreed=True)
    )
    combine_quant_mode: int = field(
        default=0, metadata=_is("whole", "combine_quant_mode", choices=(0, 3, 4), agreed=True, late=True)
    )
    comm_alg: str = field(default="", metadata=_is("text", "comm_alg", choices=("",), late=True))
    topk_weights_type: int = field(
        default=0, metadata=_is("whole", "topk_weights_type", since="9.2", choices=(0, 1), agreed=True)
    )
    combine_comm_mode: int = field(
        default=0, metadata=_is("whole", since="later", choices=(0, 1), agreed=True, late=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArguments:
    """Arguments of `mega_moe`, in its order; shapes and types there."""

    x: Tensor = field(metadata=_is("tensor", "x"))
    topk_ids: Tensor = field(metadata=_is("tensor", "topk_ids"))
    topk_weights: Tensor = field(metadata=_is("tensor", "topk_weights"))
    l1_weights: WeightList = field(metadata=_is("weights", "weight1"))
    l2_weights: WeightList = field(metadata=_is("weights", "weight2"))
    sym_buffer: Any = field(metadata=_is("buffer"))
    l1_weights_sf: WeightList | None = field(default=None, metadata=_is("side", "weight_scales1"))
    l2_weights_sf: WeightList | None = field(default=None, metadata=_is("side", "weight_scales2"))
    l1_bias: WeightList | None = field(default=None, metadata=_is("side", "bias1"))
    l2_bias: WeightList | None = field(default=None, metadata=_is("side", "bias2"))
    x_active_mask: Tensor | None = field(default=None, metadata=_is("tensor", "x_active_mask"))
    activation: str = field(default="swiglu", metadata=_is("text", "activation"))
    activation_clamp: float | None = field(default=None, metadata=_is("number", "activation_clamp"))
    activation_params: Mapping[str, float] | Sequence[float] | None = field(
        default=None, metadata=_is("params", "activation_params", since="9.2")
    )
    weight1_type: DtypeArgument = field(default=None, metadata=_is("dtype", "weight1_type"))
    weight2_type: DtypeArgument = field(default=None, metadata=_is("dtype", "weight2_type"))
    shared_l1_weights: WeightList | None = field(default=None, metadata=_is("weights", "shared_weight1", since="9.2"))
    shared_l2_weights: WeightList | None = field(default=None, metadata=_is("weights", "shared_weight2", since="9.2"))
    shared_l1_weights_sf: WeightList | None = field(
        default=None, metadata=_is("side", "shared_weight_scales1", since="9.2")
    )
    shared_l2_weights_sf: WeightList | None = field(
        default=None, metadata=_is("side", "shared_weight_scales2", since="9.2")
    )
    shared_l1_bias: WeightList | None = field(default=None, metadata=_is("side", "shared_bias1", since="9.2"))
    shared_l2_bias: WeightList | None = field(default=None, metadata=_is("side", "shared_bias2", since="9.2"))
    scales: Tensor | None = field(default=None, metadata=_is("tensor", since="later"))
    shared_weight1_type: DtypeArgument = field(default=None, metadata=_is("dtype", since="later"))
    shared_weight2_type: DtypeArgument = field(default=None, metadata=_is("dtype", since="later"))
    shared_expert_quant_out_dtype: DtypeArgument = field(default=None, metadata=_is("dtype", since="later"))


def _table(function: Function, arguments: type) -> tuple[Argument, ...]:
    return tuple(Argument(name=f.name, function=function, default=f.default, **f.metadata) for f in fields(arguments))


CREATE: tuple[Argument, ...] = _table("get_symm_buffer_for_mega_moe", CreateArguments)
CALL: tuple[Argument, ...] = _table("mega_moe", CallArguments)
SHARED_BIASES = ("shared_l1_bias", "shared_l2_bias")
"""In the signature of both documents' newer revision, and never usable."""

_DTYPE_RULE = (
    f"None, a torch dtype that the operator has, torch's number of it ({', '.join(map(str, OF_ENUM))}), "
    f"or ACL's number + {CODE_OFFSET}"
)
_DTYPE_SOURCE = "op csrc, GetAclDataType"
_DTYPE_REMEDY = (
    f"Pass {AclDtype.INT8.code} for INT8, {AclDtype.INT4.code} for INT4, {AclDtype.FLOAT8_E5M2.code} or "
    f"{AclDtype.FLOAT8_E4M3FN.code} for FP8 E5M2 or E4M3, {AclDtype.FLOAT4_E2M1.code} for FP4."
)
_API, _README = "torch_api.txt, parameters", "operator_readme.txt, attributes"


def tensors_of(value: WeightList | None) -> list[Tensor]:
    """A list argument as a list: one stack is a list of one, None an empty one."""
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def wrong_kind(argument: Argument, value: Any) -> OperatorError | None:
    """The error for a value that is not of its argument's kind: integers are integers, tensors are tensors.

    The twin runs it where torch.compile traces, so it looks at types alone; what numbers and tensors hold is checked
    later (`check_create`, the profile's rules, the twin's checks). Activations have a reader of their own
    (numerics.activations).
    """
    kind, name = argument.kind, argument.name
    if value is None and not argument.is_required and argument.default is None:
        return None
    if name in SHARED_BIASES:
        source = "operator_readme.txt, sharedBias1 and sharedBias2"
        return rejection(name, "given", "None: shared experts take no bias", source, f"Pass {name}=None.")
    if kind == "tensor":
        if isinstance(value, Tensor) and not isinstance(value, FormattedTensor):
            return None
        remedy = f"Pass {name} as a torch tensor; one in blocks goes through format_cast({name}, AclFormat.ND) first."
        return rejection(name, _shown(value), "a tensor in rows", _API, remedy)
    if kind in ("weights", "side"):
        return _wrong_list(argument, value)
    if kind == "dtype" and (isinstance(value, bool) or (value not in CODES and not isinstance(value, int))):
        return rejection(name, repr(value), _DTYPE_RULE, _DTYPE_SOURCE, _DTYPE_REMEDY)
    return None


def check_kinds(arguments: CallArguments) -> None:
    """Reject the first argument of a call that is of another kind.

    Raises:
        OperatorError: see `wrong_kind`.
    """
    for argument in CALL:
        error = wrong_kind(argument, getattr(arguments, argument.name))
        if error is not None:
            raise error


def _wrong_list(argument: Argument, value: Any) -> OperatorError | None:
    name = argument.name
    tensors = [value] if isinstance(value, Tensor) else value
    if not isinstance(tensors, (list, tuple)):
        expected = "a list of tensors, one per expert, or one stack"
        return rejection(name, _shown(value), expected, _API, f"Pass {name}=[tensor, ...].")
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            remedy = "Pass one tensor for each expert of this rank."
            return rejection(f"{name}[{place}]", _shown(tensor), "a tensor", _API, remedy)
        if argument.kind == "side" and isinstance(tensor, FormattedTensor):
            remedy = "Take format_cast(.., AclFormat.ND); scales and biases are never in blocks."
            return rejection(f"{name}[{place}]", _shown(tensor), "a tensor in rows", _API, remedy)
    return None


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor | list | tuple | dict) else repr(value)


def check_create(given: Any, *, late: bool) -> None:
    """Reject arguments of creation that are of another kind, out of range, or no value of theirs.

    Args:
        given: a CreateArguments, or a SymmBuffer, whose attributes a caller may have changed.
        late: whether to look at the values of `late` arguments too.

    Raises:
        OperatorError: naming the first one that is wrong.
    """
    for argument in CREATE:
        name, value, choices = argument.name, getattr(given, argument.name), argument.choices
        if argument.kind == "whole" and (not isinstance(value, int) or isinstance(value, bool)):
            remedy = f"Pass a Python int such as {name}={choices[-1] if choices else 8}."
            raise rejection(name, repr(value), "an integer", _README, remedy)
        if argument.kind == "text" and not isinstance(value, str):
            raise rejection(name, repr(value), "a string", _README, f"Pass {name}={argument.default!r}.")
        if argument.kind == "dtype":
            dtype_of_argument(name, value)
        if argument.least is not None and value < argument.least:
            remedy = f"Pass {argument.default if not argument.is_required else 8}, say."
            raise rejection(name, repr(value), f"an int of at least {argument.least}", _README, remedy)
        if choices and value not in choices and (late or not argument.late):
            expected = f"one of {', '.join(map(repr, choices))}" if len(choices) > 1 else repr(choices[0])
            raise rejection(name, repr(value), expected, _README, f"Leave it out for {argument.default!r}.")


def dtype_of_argument(name: str, value: Any) -> Any:
    """A dtype argument as AclDtype, None for none, in any spelling of the operator (op csrc, GetAclDataType).

    Raises:
        OperatorError: it is no code.
    """
    try:
        return normalise_dtype(value, name)
    except LayoutError as e:
        raise rejection(name, repr(value), _DTYPE_RULE, _DTYPE_SOURCE, _DTYPE_REMEDY) from e
