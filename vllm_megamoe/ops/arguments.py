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

from vllm_megamoe.errors import LayoutError, OperatorError
from vllm_megamoe.layout.dtypes import normalise_dtype
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

    @property
    def is_required(self) -> bool:
        """Whether a caller must give it."""
        return self.default is REQUIRED

    def is_default(self, value: Any) -> bool:
        """Whether a value says what leaving the argument out says; None does so everywhere."""
        if value is None:
            return not self.is_required
        return isinstance(value, int | str) and not isinstance(value, bool) and bool(value == self.default)


def _argument(
    kind: Kind,
    default: Any = REQUIRED,
    *,
    since: Since = "9.1",
    schema: str = "",
    least: int | None = None,
    choices: tuple[int | str, ...] = (),
    agreed: bool = False,
) -> Any:
    said = {"kind": kind, "since": since, "schema": schema, "least": least, "choices": choices, "agreed": agreed}
    return field(default=default, metadata=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateArguments:
    """Arguments of `get_symm_buffer_for_mega_moe`, in its order; meanings there."""

    group: Any = _argument("group")
    num_experts: int = _argument("whole", schema="moe_expert_num", least=1, agreed=True)
    num_max_tokens_per_rank: int = _argument("whole", schema="num_max_tokens_per_rank", least=0, agreed=True)
    num_topk: int = _argument("whole", least=1, agreed=True)
    hidden: int = _argument("whole", least=1, agreed=True)
    intermediate_hidden: int = _argument("whole", least=0)
    max_recv_token_num: int = _argument("whole", 0, schema="max_recv_token_num", least=0, agreed=True)
    dispatch_quant_mode: int = _argument("whole", 0, schema="dispatch_quant_mode", choices=(0, 2, 4), agreed=True)
    dispatch_quant_out_dtype: DtypeArgument = _argument("dtype", None, schema="dispatch_quant_out_dtype", agreed=True)
    combine_quant_mode: int = _argument("whole", 0, schema="combine_quant_mode", choices=(0, 3, 4), agreed=True)
    comm_alg: str = _argument("text", "", schema="comm_alg", choices=("",))
    topk_weights_type: int = _argument(
        "whole", 0, since="9.2", schema="topk_weights_type", choices=(0, 1), agreed=True
    )
    combine_comm_mode: int = _argument("whole", 0, since="later", choices=(0, 1), agreed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArguments:
    """Arguments of `mega_moe`, in its order; shapes and types there."""

    x: Tensor = _argument("tensor", schema="x")
    topk_ids: Tensor = _argument("tensor", schema="topk_ids")
    topk_weights: Tensor = _argument("tensor", schema="topk_weights")
    l1_weights: WeightList = _argument("weights", schema="weight1")
    l2_weights: WeightList = _argument("weights", schema="weight2")
    sym_buffer: Any = _argument("buffer")
    l1_weights_sf: WeightList | None = _argument("side", None, schema="weight_scales1")
    l2_weights_sf: WeightList | None = _argument("side", None, schema="weight_scales2")
    l1_bias: WeightList | None = _argument("side", None, schema="bias1")
    l2_bias: WeightList | None = _argument("side", None, schema="bias2")
    x_active_mask: Tensor | None = _argument("tensor", None, schema="x_active_mask")
    activation: str = _argument("text", "swiglu", schema="activation")
    activation_clamp: float | None = _argument("number", None, schema="activation_clamp")
    activation_params: Mapping[str, float] | Sequence[float] | None = _argument(
        "params", None, since="9.2", schema="activation_params"
    )
    weight1_type: DtypeArgument = _argument("dtype", None, schema="weight1_type")
    weight2_type: DtypeArgument = _argument("dtype", None, schema="weight2_type")
    shared_l1_weights: WeightList | None = _argument("weights", None, since="9.2", schema="shared_weight1")
    shared_l2_weights: WeightList | None = _argument("weights", None, since="9.2", schema="shared_weight2")
    shared_l1_weights_sf: WeightList | None = _argument("side", None, since="9.2", schema="shared_weight_scales1")
    shared_l2_weights_sf: WeightList | None = _argument("side", None, since="9.2", schema="shared_weight_scales2")
    shared_l1_bias: WeightList | None = _argument("side", None, since="9.2", schema="shared_bias1")
    shared_l2_bias: WeightList | None = _argument("side", None, since="9.2", schema="shared_bias2")
    scales: Tensor | None = _argument("tensor", None, since="later")
    shared_weight1_type: DtypeArgument = _argument("dtype", None, since="later")
    shared_weight2_type: DtypeArgument = _argument("dtype", None, since="later")
    shared_expert_quant_out_dtype: DtypeArgument = _argument("dtype", None, since="later")


def _table(function: Function, arguments: type) -> tuple[Argument, ...]:
    return tuple(Argument(name=f.name, function=function, default=f.default, **f.metadata) for f in fields(arguments))


CREATE: tuple[Argument, ...] = _table("get_symm_buffer_for_mega_moe", CreateArguments)
CALL: tuple[Argument, ...] = _table("mega_moe", CallArguments)
SHARED_BIASES = ("shared_l1_bias", "shared_l2_bias")
"""In the signature of both documents' newer revision, and never usable."""

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
    if kind == "tensor":
        if isinstance(value, Tensor) and not isinstance(value, FormattedTensor):
            return None
        remedy = f"Pass {name}, format_cast(.., AclFormat.ND) where it is in blocks."
        return rejection(name, _shown(value), "a tensor in rows", _API, remedy)
    if kind in ("weights", "side"):
        return _wrong_list(argument, value)
    if kind == "dtype" and not isinstance(value, torch.dtype | int):
        return rejection(name, repr(value), "None, a torch dtype or a number", _README, "Pass torch.int8 or 285, say.")
    return None


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


def check_create(given: Any, *, values: bool = True) -> None:
    """Reject arguments of creation that are of another kind, out of range, or no value of theirs.

    Args:
        given: a CreateArguments, or a SymmBuffer, whose attributes a caller may have changed.
        values: whether to look at `choices` too. The size function of a product's creation looks at few of them, and
            its rules say so better than this check.

    Raises:
        OperatorError: naming the first one that is wrong.
    """
    for argument in CREATE:
        name, value = argument.name, getattr(given, argument.name)
        if argument.kind == "whole" and (not isinstance(value, int) or isinstance(value, bool)):
            remedy = f"Pass a Python int such as {name}={argument.choices[-1] if argument.choices else 8}."
            raise rejection(name, repr(value), "an integer", _README, remedy)
        if argument.kind == "text" and not isinstance(value, str):
            raise rejection(name, repr(value), "a string", _README, f"Leave it out, or pass {name}={argument.default!r}.")
        if argument.kind == "dtype":
            dtype_of_argument(name, value)
        if argument.least is not None and value < argument.least:
            remedy = f"Pass {argument.least} or more; {name}=8, say."
            raise rejection(name, repr(value), f"an int of at least {argument.least}", _README, remedy)
        if values and argument.choices and value not in argument.choices:
            expected = " or ".join(repr(choice) for choice in argument.choices)
            remedy = f"Leave it out for {argument.default!r}."
            raise rejection(name, repr(value), f"one of {expected}" if len(argument.choices) > 1 else expected, _README, remedy)


def dtype_of_argument(name: str, value: Any) -> Any:
    """A dtype argument as AclDtype, None for none, in any spelling of the operator (op csrc, GetAclDataType).

    Raises:
        OperatorError: it is no code.
    """
    try:
        return normalise_dtype(value, name)
    except LayoutError as e:
        expected = "None, a torch dtype, torch's number of it (1, 23, 24, 45), or ACL's number + 256"
        remedy = "Pass 258 for INT8, 285 for INT4, 291 or 292 for FP8 E5M2 or E4M3, 296 for FP4."
        raise rejection(name, repr(value), expected, "op csrc, GetAclDataType", remedy) from e
