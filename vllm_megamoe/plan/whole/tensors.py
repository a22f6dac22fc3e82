"""What a model is made of: tensors, how each spreads over tensor-parallel ranks, and what is kept of a sequence."""

from dataclasses import dataclass
from typing import Literal

Part = Literal[
    "attention",
    "embeddings",
    "dense MLP",
    "routed experts",
    "shared experts",
    "router",
    "norms and the like",
    "vision",
    "draft extras",
]

Spread = Literal["whole", "tensor", "kv"]
"""Over the tensor-parallel ranks: a copy on each, cut into equal parts, or cut by key-value heads and copied where
there are fewer of them than ranks (vLLM 0.32: ReplicatedLinear, Column- and RowParallelLinear, QKVParallelLinear)."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """One tensor, or several that are alike.

    Attributes:
        part: what it belongs to.
        elements: numbers in it, over the whole model.
        spread: see Spread.
        linear: module name within its layer where a quantisation may hold it, empty for what stays a float.
        heads: key-value heads, for the spread `kv`.
        read: whether a step reads all of it; False for the token table, of which a row a token is read.
    """

    part: Part
    elements: int
    spread: Spread = "whole"
    linear: str = ""
    heads: int = 0
    read: bool = True

    def on_a_rank(self, tensor_parallel: int) -> float:
        """Elements on the fullest of so many tensor-parallel ranks."""
        if self.spread == "whole":
            return self.elements
        pieces = min(tensor_parallel, self.heads) if self.spread == "kv" else tensor_parallel
        return self.elements / pieces


@dataclass(frozen=True, slots=True)
class Cache:
    """What one layer keeps of a sequence.

    Attributes:
        elements: numbers of an entry, all heads together.
        heads: by which an entry is cut over tensor-parallel ranks; 1 where each rank keeps all of it.
        stride: tokens of an entry; compressed attention keeps one entry for several.
        window: most tokens that are kept, 0 for all.
        state_bytes: of a recurrent state, the same for any length.
        state_heads: by which the state is cut.
        score: multiply-adds that a query token does for each entry, over all heads; 0 where they are few.
        most_scored: entries that a query token attends to at most (sparse attention), 0 for all.
    """

    elements: int = 0
    heads: int = 1
    stride: int = 1
    window: int = 0
    state_bytes: int = 0
    state_heads: int = 1
    score: int = 0
    most_scored: int = 0

    def entries(self, tokens: int) -> int:
        """Entries that are kept of a sequence of so many tokens."""
        kept = min(tokens, self.window) if self.window else tokens
        return -(-kept // self.stride)

    def bytes_on_a_rank(self, tokens: int, tensor_parallel: int, bits: int) -> float:
        """Bytes of a sequence of so many tokens.

        Args:
            bits: of a cached number, 16 for bfloat16, 8 for a quantised cache.
        """
        entry = self.elements / min(self.heads, tensor_parallel) * bits / 8
        return self.entries(tokens) * entry + self.state_bytes / min(self.state_heads, tensor_parallel)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer of the model, without its routed experts.

    Attributes:
        number: of the decoder layer; draft layers go on counting.
        draft: whether it belongs to a draft (MTP) model.
        tensors: all of it but the routed experts.
        caches: what it keeps of a sequence.
    """

    number: int
    tensors: tuple[Tensors, ...]
    caches: tuple[Cache, ...] = ()
    draft: bool = False
