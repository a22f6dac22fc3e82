"""The one custom op: opaque to torch.compile, with all that depends on token count, rank or buffer inside.

A custom op's schema takes tensors, lists of tensors and plain numbers. `run_op` writes the arguments of a call into
those, `_read` inside the op takes them apart again; both go through the argument table in the same order:

    tensors   x and every other tensor but topk_ids; weights as their stored bytes
    places    for each tensor argument 1 or 0; for each list its length, and for each weight its format, number of
              dimensions and dimensions; for each dtype argument 1 or 0, and its number
    words     activation, whether there is a clamp, and the names of its other parameters
    numbers   the clamp, and the values of the others

`run_op` is traced by torch.compile, so it looks at nothing but types. It never raises: what is wrong travels into the
op as `problem`, because only in there the other ranks can be told.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.dtypes import CODES
from vllm_megamoe.layout.formatted import FormattedTensor, inner
from vllm_megamoe.numerics.activations import named_parameters
from vllm_megamoe.ops.arguments import CALL, SHARED_BIASES, CallArguments, check_kinds, dtype_of_argument, tensors_of
from vllm_megamoe.ops.given import PACKED_FP4, Given, GivenWeights
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.read_call import read_call
from vllm_megamoe.ops.twin.run import run_call
from vllm_megamoe.ops.twin.state import buffer_of

_ND = int(AclFormat.ND)
_SEPARATOR = "\x1f"
_PACKED = tuple(a for a in CALL if a.name not in ("topk_ids", *SHARED_BIASES))
"""What travels in `tensors` and `places`."""


_Form = tuple[list[tuple[int, ...]], list[AclFormat]]
"""Logical shapes and formats of a list."""


@torch.library.custom_op("vllm_megamoe::mega_moe", mutates_args=("topk_ids",))
def mega_moe_op(
    topk_ids: Tensor,
    tensors: Sequence[Tensor],
    places: Sequence[int],
    words: str,
    numbers: Sequence[float],
    problem: str,
    handle: str,
) -> tuple[Tensor, Tensor]:
    """See `mega_moe`, and above for the form of its arguments.

    Args:
        problem: why the call is rejected whatever else it holds; empty for none.
        handle: of the SymmBuffer.
    """
    buffer = buffer_of(handle)

    def read(config: Settings) -> Call:
        return read_call(_read(topk_ids, tensors, places, words, numbers, problem), buffer, config)

    return run_call(buffer, read)


@mega_moe_op.register_fake
def _(
    topk_ids: Tensor,
    tensors: Sequence[Tensor],
    places: Sequence[int],
    words: str,
    numbers: Sequence[float],
    problem: str,
    handle: str,
) -> tuple[Tensor, Tensor]:
    del topk_ids, places, words, numbers, problem
    x = tensors[0]
    hidden = x.shape[1] * 2 if x.dtype in PACKED_FP4 else x.shape[1]
    dtype = torch.float32 if x.dtype == torch.float32 else torch.bfloat16
    y = x.new_empty((x.shape[0], hidden), dtype=dtype)
    return y, x.new_empty((buffer_of(handle).experts_per_rank,), dtype=torch.int32)


def run_op(arguments: CallArguments, handle: str) -> tuple[Tensor, Tensor]:
    """Run the custom op on the arguments of `mega_moe`."""
    result: tuple[Tensor, Tensor]
    try:
        check_kinds(arguments)
        clamp, named = named_parameters(arguments.activation, arguments.activation_clamp, arguments.activation_params)
    except OperatorError as error:
        result = mega_moe_op(torch.empty(0), [torch.empty(0, 0)], [], "", [], str(error), handle)
        return result
    tensors: list[Tensor] = []
    places: list[int] = []
    for argument in _PACKED:
        value = getattr(arguments, argument.name)
        if argument.kind == "tensor":
            places.append(0 if value is None else 1)
            tensors.extend(tensors_of(value))
        elif argument.kind in ("weights", "side"):
            held = tensors_of(value)
            places.append(len(held))
            for tensor in held:
                if argument.kind == "weights":
                    places.extend((_format(tensor), len(tensor.shape), *tensor.shape))
                tensors.append(inner(tensor))
        elif argument.kind == "dtype":
            places.extend((0, 0) if value is None else (1, CODES.get(value, value)))
    words = _SEPARATOR.join((arguments.activation, "" if clamp is None else "clamp", *named))
    numbers = [*([] if clamp is None else [clamp]), *named.values()]
    result = mega_moe_op(arguments.topk_ids, tensors, places, words, numbers, "", handle)
    return result


def _format(tensor: Tensor) -> int:
    return int(tensor.acl_format) if isinstance(tensor, FormattedTensor) else _ND


def _read(
    topk_ids: Tensor,
    tensors: Sequence[Tensor],
    places: Sequence[int],
    words: str,
    numbers: Sequence[float],
    problem: str,
) -> Given:
    """The call that `run_op` wrote.

    Raises:
        OperatorError: the problem that it found, a code that is no dtype, or a list that is no list of matrices.
    """
    if problem:
        raise OperatorError(problem)
    left, held = iter(places), iter(tensors)
    found: dict[str, Any] = {}
    forms: dict[str, _Form] = {}
    for argument in _PACKED:
        name = argument.name
        if argument.kind == "tensor":
            found[name] = next(held) if next(left) else None
        elif argument.kind == "side":
            found[name] = [next(held) for _ in range(next(left))]
        elif argument.kind == "weights":
            found[name] = []
            forms[name] = shapes, formats = [], []
            for _ in range(next(left)):
                formats.append(AclFormat(next(left)))
                shapes.append(tuple(next(left) for _ in range(next(left))))
                found[name].append(next(held))
        elif argument.kind == "dtype":
            is_given, code = next(left), next(left)
            found[name] = dtype_of_argument(name, code if is_given else None)
    activation, has_clamp, *names = words.split(_SEPARATOR)
    values: Iterator[float] = iter(numbers)
    clamp = next(values) if has_clamp else None
    return Given(
        x=found["x"],
        topk_ids=topk_ids,
        topk_weights=found["topk_weights"],
        mask=found["x_active_mask"],
        scales=found["scales"],
        l1=_weights("l1_weights", found, forms),
        l2=_weights("l2_weights", found, forms),
        shared_l1=_weights("shared_l1_weights", found, forms),
        shared_l2=_weights("shared_l2_weights", found, forms),
        shared_out=found["shared_expert_quant_out_dtype"],
        activation=activation,
        clamp=clamp,
        params=dict(zip(names, values, strict=True)),
    )


def _weights(name: str, found: dict[str, Any], forms: dict[str, _Form]) -> GivenWeights:
    declared: AclDtype | None = found[name.replace("l1_weights", "weight1_type").replace("l2_weights", "weight2_type")]
    biases = found.get(name.replace("_weights", "_bias"), [])
    made = GivenWeights(name, found[name], *forms[name], found[f"{name}_sf"], biases, declared)
    if made.tensors or not name.startswith("shared"):
        made.check_list()
    return made
