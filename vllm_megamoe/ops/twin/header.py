"""What each rank tells every other one at the start of a call: which call it makes, or why it rejects its call.

First the facts that must be equal on all ranks, as named integers (operator_readme.txt, consistency constraints). Then
one message whose size only the group decides, so that ranks which disagree on everything else can read each other:

    int64 words:  magic | failed | sequence | facts ... | text (bytes) | counts for the reader's experts (int32) |
                  tokens | rows for each rank ...
"""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.layout.dtypes import dtype_of
from vllm_megamoe.numerics.activations import PARAMETERS
from vllm_megamoe.ops.arguments import CREATE, dtype_of_argument
from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.profiles.profile import PROFILE_NAMES

CONFIGURATION = tuple(a.name for a in CREATE if a.agreed and a.kind == "whole")
ACTIVATIONS = tuple(PARAMETERS)
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
    "topology",
    "ccl_buffer_size",
)
_TYPES = frozenset({"dispatch_quant_out_dtype", "x.dtype", "l1_weights.dtype"})
_FLOATS = frozenset(_ACTIVATION_NUMBERS)
_WORDS: dict[str, tuple[str, ...]] = {
    "activation": ACTIVATIONS,
    "profile": PROFILE_NAMES,
    "topology": ("mte", "urma"),
    "numerics.rule": ("kernel", "spec"),
}
_NONE = -1


def facts_of(call: Call, number: int) -> tuple[int, ...]:
    """The facts of a call, in the order of NAMES; `number` is the buffer's."""
    out = dtype_of_argument("dispatch_quant_out_dtype", call.buffer.dispatch_quant_out_dtype)
    activation, profile = call.activation, call.config.found_profile
    return (
        number,
        *(int(getattr(call.buffer, name)) for name in CONFIGURATION),
        _NONE if out is None else int(out),
        _x_type(call.given.x.dtype),
        int(call.routed.l1.element),
        call.routed.l2.inputs,
        ACTIVATIONS.index(activation.name),
        *(_bits(getattr(activation, name)) for name in _ACTIVATION_NUMBERS),
        _WORDS["numerics.rule"].index(call.config.numerics.rule),
        PROFILE_NAMES.index(profile.name),
        _WORDS["topology"].index(profile.topology),
        call.window,
    )


def no_facts(number: int) -> tuple[int, ...]:
    """Stands in for the facts of a call that was rejected."""
    return (number, *[_NONE] * (len(NAMES) - 1))


def shown(name: str, value: int) -> str:
    """A fact as a person writes it."""
    if value == _NONE:
        return "None"
    if name in _TYPES:
        return AclDtype(value).name
    if name in _FLOATS:
        return f"{struct.unpack('<d', struct.pack('<q', value))[0]:g}"
    words = _WORDS.get(name, ())
    return words[value] if 0 <= value < len(words) else str(value)


def _bits(value: float | None) -> int:
    return _NONE if value is None else int(struct.unpack("<q", struct.pack("<d", value))[0])


def _x_type(dtype: torch.dtype) -> int:
    found = dtype_of(dtype)
    # The only x whose dtype says nothing is packed FP4 in uint8.
    return int(AclDtype.FLOAT4_E2M1 if found is None else found)


MAX_LOCAL_EXPERTS = 1024
"""Experts of a rank: as many counts fit into a message (operator_readme.txt, localMoeExpertNum, has it too)."""

MAGIC = 0x4D65_6761_4D6F_4502
FACT_WORDS = 32
TEXT_BYTES = 512
_TEXT_AT = 3 + FACT_WORDS
_COUNTS_AT = _TEXT_AT + TEXT_BYTES // 8
_TOKENS_AT = _COUNTS_AT + MAX_LOCAL_EXPERTS // 2
_ROWS_AT = _TOKENS_AT + 1


def words_of(ranks: int) -> int:
    """Length of a message, in int64 words."""
    return _ROWS_AT + ranks


@dataclass(frozen=True, slots=True)
class Header:
    """One rank's side of a call.

    Attributes:
        sequence: number of the call on this communicator, rejected calls included.
        facts: numbers that must be equal on all ranks, in the order of NAMES.
        counts: int64 [E], rows for each of the reader's experts.
        tokens: rows of this rank's x.
        rows: int64 [ranks], rows that it sends to each rank.
        failure: why this rank rejects its call, None when it does not.
    """

    sequence: int
    facts: tuple[int, ...]
    counts: Tensor
    tokens: int
    rows: Tensor
    failure: str | None = None

    def pack(self) -> Tensor:
        """int64 [words_of(ranks)]."""
        words = torch.zeros(words_of(len(self.rows)), dtype=torch.int64)
        numbers = [MAGIC, int(self.failure is not None), self.sequence, *self.facts]
        words[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        if self.failure is not None:
            text = bytearray(self.failure.encode()[:TEXT_BYTES])
            words[_TEXT_AT:_COUNTS_AT].view(torch.uint8)[: len(text)] = torch.frombuffer(text, dtype=torch.uint8)
        words[_COUNTS_AT:_TOKENS_AT].view(torch.int32)[: len(self.counts)] = self.counts.to(torch.int32)
        words[_TOKENS_AT] = self.tokens
        words[_ROWS_AT:] = self.rows
        return words


def unpack(words: Tensor, experts: int) -> Header | None:
    """A received message, None when it is none of ours.

    Args:
        words: int64 [words_of(ranks)].
        experts: how many counts to read.
    """
    magic, failed, sequence = words[:3].tolist()
    if magic != MAGIC:
        return None
    text = bytes(words[_TEXT_AT:_COUNTS_AT].view(torch.uint8).tolist()).rstrip(b"\0") if failed else b""
    counts = words[_COUNTS_AT:_TOKENS_AT].view(torch.int32)[:experts].to(torch.int64)
    failure = text.decode(errors="replace") if failed else None
    facts = tuple(words[3 : 3 + len(NAMES)].tolist())
    return Header(sequence, facts, counts, int(words[_TOKENS_AT]), words[_ROWS_AT:].clone(), failure)
