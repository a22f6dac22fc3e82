"""What must be equal on all ranks of a call, as named integers (operator_readme.txt, consistency constraints)."""

import struct

import torch

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.layout.dtypes import dtype_of
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.checks.buffer import out_type
from vllm_megamoe.profiles.profile import PROFILE_NAMES

CONFIGURATION = (
    "num_experts",
    "num_max_tokens_per_rank",
    "num_topk",
    "hidden",
    "max_recv_token_num",
    "dispatch_quant_mode",
    "combine_quant_mode",
    "topk_weights_type",
    "combine_comm_mode",
)
ACTIVATIONS = ("swiglu", "swiglustep", "swigluoai", "situglu")
_ACTIVATION_NUMBERS = ("clamp", "alpha", "beta", "linear_beta")

NAMES = (
    "buffer",
    *CONFIGURATION,
    "dispatch_quant_out_dtype",
    "x.dtype",
    "l1_weights.dtype",
    "intermediate size",
    "activation",
    *_ACTIVATION_NUMBERS,
    "numerics.rule",
    "profile",
)
_TYPES = frozenset({"dispatch_quant_out_dtype", "x.dtype", "l1_weights.dtype"})
_FLOATS = frozenset(_ACTIVATION_NUMBERS)
_NONE = -1


def facts_of(call: Call) -> tuple[int, ...]:
    """The facts of a call, in the order of NAMES."""
    out = out_type(call.buffer)
    activation = call.activation
    return (
        call.buffer.number,
        *(int(getattr(call.buffer, name)) for name in CONFIGURATION),
        _NONE if out is None else int(out),
        _x_type(call.raw.x.dtype),
        int(call.routed.l1.element),
        call.routed.l2.inputs,
        ACTIVATIONS.index(activation.name),
        *(_bits(getattr(activation, name)) for name in _ACTIVATION_NUMBERS),
        int(call.config.numerics.rule == "spec"),
        PROFILE_NAMES.index(call.config.profile),
    )


def no_facts(buffer: SymmBuffer) -> tuple[int, ...]:
    """Stands in for the facts of a call that was rejected."""
    return (buffer.number, *[_NONE] * (len(NAMES) - 1))


def shown(name: str, value: int) -> str:
    """A fact as a person writes it."""
    if value == _NONE:
        return "None"
    if name in _TYPES:
        return AclDtype(value).name
    if name in _FLOATS:
        return f"{struct.unpack('<d', struct.pack('<q', value))[0]:g}"
    if name == "profile":
        return PROFILE_NAMES[value]
    return ACTIVATIONS[value] if name == "activation" and 0 <= value < len(ACTIVATIONS) else str(value)


def _bits(value: float | None) -> int:
    return _NONE if value is None else int(struct.unpack("<q", struct.pack("<d", value))[0])


def _x_type(dtype: torch.dtype) -> int:
    found = dtype_of(dtype)
    # The only x whose dtype says nothing is packed FP4 in uint8.
    return int(AclDtype.FLOAT4_E2M1 if found is None else found)
