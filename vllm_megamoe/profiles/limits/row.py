"""One row of the table of limits: all that a profile takes, each cell a value with the place that says so.

Values are plain, or sets of integers as the documents write them (`Numbers`: a range, a multiple, a list). Places are
the two documents, or code as file and commit; a number behind a place is a line of it. 9.1.0 is the release branch of
that name (2026-07-21), HEAD the newest whole snapshot (2026-08-21), `2026-09` single files of later state that carry no
commit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from vllm_megamoe.profiles.use_cases import UseCase

API = "torch_api.txt"
README = "operator_readme.txt"
CSRC_91 = "csrc mega_moe.cpp 9.1.0 06be6c2ca"
CSRC_92 = "csrc mega_moe.cpp HEAD 577814407"
ARCH22_91 = "arch22 tiling 9.1.0 06be6c2ca"
ARCH22_92 = "arch22 tiling HEAD 577814407"
ARCH35_91 = "arch35 tiling 9.1.0 06be6c2ca"
ARCH35_92 = "arch35 tiling HEAD 577814407"
ARCH35_NEWEST = "arch35 tiling 2026-09"
KERNEL22 = "op kernel arch22, unpermute (all variants, 9.1.0 and HEAD)"
KERNEL35_91 = "op kernel arch35 9.1.0 06be6c2ca"
WRAPPER_91 = "op wrapper mega_moe.py 9.1.0 06be6c2ca"
WRAPPER_92 = "op wrapper mega_moe.py HEAD 577814407"
DOCUMENT_92 = "docs/zh/mega_moe.md HEAD 577814407"
CONTEXT = "op wrapper comm_context.cpp (9.1.0, HEAD and 2026-09)"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell(Generic[T]):
    """A limit.

    Attributes:
        value: what holds.
        source: document and line numbers, or code with its commit; all of them where they differ, the stricter first.
        why: what a plan tells as its reason where the value stands in the way, the end of a sentence; else empty.
    """

    value: T
    source: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Integers that a parameter may have.

    Attributes:
        least, most: bounds, both included; no upper one where `most` is None.
        step: all are multiples of it.
        only: the allowed ones, where the document lists them; the other attributes follow from it.
    """

    least: int
    most: int | None = None
    step: int = 1
    only: tuple[int, ...] = ()

    @classmethod
    def listed(cls, *numbers: int) -> "Numbers":
        """These and no others, in ascending order."""
        return cls(numbers[0], numbers[-1], 1, numbers)

    def __contains__(self, number: int) -> bool:
        if self.only:
            return number in self.only
        return self.least <= number and (self.most is None or number <= self.most) and number % self.step == 0

    def at_least(self, number: int) -> int | None:
        """The smallest allowed one that is not below `number`, None when there is none."""
        if self.only:
            return next((n for n in self.only if n >= number), None)
        found = -(-max(number, self.least) // self.step) * self.step
        return found if found in self else None

    def __str__(self) -> str:
        if self.only:
            return "one of " + ", ".join(map(str, self.only))
        bounds = f"at least {self.least}" if self.most is None else f"in [{self.least}, {self.most}]"
        return bounds if self.step == 1 else f"{bounds} and a multiple of {self.step}"


Clamp = Literal["any", "positive", "none"]
Rows = Literal["any", "alike", "full"]
Pair = tuple[str | None, str]
"""ACL names: type of the dispatched rows (None for BF16 as it is), element of the weights."""
Formats = Mapping[Pair, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one profile; I is the width after the activation, N = 2 * I that of the first weight.

    Attributes:
        ep_sizes: ranks of the communicator.
        hidden, intermediate, topk: H, I, K.
        created_hidden, created_topk, created_experts: what creation of a buffer takes of H, K and num_experts; it looks
            less closely than the call.
        max_tokens: most that num_max_tokens_per_rank may be, None for no bound.
        max_experts, max_experts_per_rank: upper bounds; experts are routed ones.
        rows: `any` number up to num_max_tokens_per_rank, `alike` on all ranks, or `full`: num_max_tokens_per_rank.
        bounded_receive: whether max_recv_token_num may not exceed what can come.
        receive_factor_int4: how often max_recv_token_num must hold what can come with INT4 weights; 0 for no demand.
        dispatch: (dispatch_quant_mode, dispatch_quant_out_dtype) that exist.
        prequantised: whether a quantised x with scales is taken.
        use_cases: those that run.
        formats: storage formats of the two weights, by what they multiply.
        layouts: `list` of matrices, one per expert, or `stacked`.
        router_weights: element types of topk_weights.
        mask: whether x_active_mask is taken.
        activations: names.
        clamp: activation_clamp may be `any` number from 0 on, `positive`, or must be left out (`none`).
        combine_quant_modes, topk_weights_types, combine_comm_modes: values.
        max_shared_experts: how many of a rank the call takes, 0 where there are none.
        shared_use_cases: use cases whose shared experts may be part of the call.
        mixed_shared: whether shared experts may have another type than the routed ones.
        many_buffers: whether a communicator can have more than one buffer.
    """

    ep_sizes: Cell[Numbers]
    hidden: Cell[Numbers]
    created_hidden: Cell[Numbers]
    intermediate: Cell[Numbers]
    topk: Cell[Numbers]
    created_topk: Cell[Numbers]
    max_tokens: Cell[int | None]
    max_experts: Cell[int]
    created_experts: Cell[Numbers]
    max_experts_per_rank: Cell[int]
    rows: Cell[Rows]
    bounded_receive: Cell[bool]
    receive_factor_int4: Cell[int]
    dispatch: Cell[frozenset[tuple[int, str | None]]]
    prequantised: Cell[bool]
    use_cases: Cell[frozenset[UseCase]]
    formats: Cell[Formats]
    layouts: Cell[tuple[str, ...]]
    router_weights: Cell[tuple[str, ...]]
    mask: Cell[bool]
    activations: Cell[tuple[str, ...]]
    clamp: Cell[Clamp]
    combine_quant_modes: Cell[tuple[int, ...]]
    topk_weights_types: Cell[tuple[int, ...]]
    combine_comm_modes: Cell[tuple[int, ...]]
    max_shared_experts: Cell[int]
    shared_use_cases: Cell[frozenset[UseCase]]
    mixed_shared: Cell[bool]
    many_buffers: Cell[bool]
