"""Sizes that the twin fixes.

What each rank tells every other one at the start of a call: which call it makes, or why it rejects to.

One message whose size only the group decides, so that ranks which disagree on everything else can read each other.

    int64 words:  magic | failed | sequence | facts ... | text (bytes) | counts for the reader's experts (int32) |
                  tokens | rows for each rank ...
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOCAL_EXPERTS = 1024
"""Experts of a rank: as many counts fit into a call's header (operator_readme.txt, localMoeExpertNum, has it too)."""


MAGIC = 0x4D65_6761_4D6F_4501
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
        facts: numbers that must be equal on all ranks, in the order of `facts.NAMES`.
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


def unpack(words: Tensor, facts: int, experts: int) -> Header | None:
    """A received message, None when it is none of ours.

    Args:
        words: int64 [words_of(ranks)].
        facts: how many facts to read.
        experts: how many counts to read.
    """
    magic, failed, sequence = words[:3].tolist()
    if magic != MAGIC:
        return None
    text = bytes(words[_TEXT_AT:_COUNTS_AT].view(torch.uint8).tolist()).rstrip(b"\0") if failed else b""
    counts = words[_COUNTS_AT:_TOKENS_AT].view(torch.int32)[:experts].to(torch.int64)
    failure = text.decode(errors="replace") if failed else None
    rows = words[_ROWS_AT:].clone()
    return Header(sequence, tuple(words[3 : 3 + facts].tolist()), counts, int(words[_TOKENS_AT]), rows, failure)
