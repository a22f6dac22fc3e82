"""The operands of a layer's experts, filled one expert at a time, and filled again in the memory that they have."""

import mmap
from dataclasses import fields, replace

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.experts.convert import as_layer, fitted
from vllm_megamoe.experts.operands import ExpertOperands, LayerOperands, put_operands, to_operands
from vllm_megamoe.layout.cast import empty_stack, on_npu
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.use_cases import UseCase

_KEPT = 32 * 2**20 - 2**16
"""Bytes. glibc gives freed pieces above a threshold back to the kernel at once, and taking one again costs more than
filling it. The threshold grows to the largest piece that was freed, up to 32 MiB (man mallopt)."""

_NAMES = tuple(field.name for field in fields(ExpertOperands))


class Slots:
    """Room for the operands of `count` experts.

    Memory is taken with the first expert, one stack of all, and experts are laid out in it: made one by one, operands
    would lie between the temporaries of their conversion and leave holes that a C library does not use again; and some
    are the bytes of the checkpoint's mapped file. Only on a device does each expert of a list have tensors of its own,
    because a part of a formatted stack is no tensor there. An expert that comes again is put into the operands that it
    has: a captured graph and a call's arguments hold their addresses.

    Conversions run on torch's own threads, as many as torch may use in this process. vLLM binds each of them to a core
    of the rank; threads made here would all share the one core of the loading thread.

    Args:
        use_case: of the operands.
        count: of experts on this rank.
        hidden, intermediate_hidden: sizes of the operands, at least those of the experts; None for theirs.
        stacked: one stack of all experts instead of a list with a tensor for each.
        dtype: as `steps.to_kind`.
    """

    def __init__(
        self,
        use_case: UseCase,
        count: int,
        *,
        hidden: int | None = None,
        intermediate_hidden: int | None = None,
        stacked: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.use_case = use_case
        self._dtype = dtype
        self._sizes = (hidden, intermediate_hidden)
        self._stacked = stacked
        self._slots: list[ExpertOperands | None] = [None] * count
        self._stacks: dict[str, Tensor | None] = {}
        self._filled: set[int] = set()
        self._likeness = ""

    def put(self, slot: int, experts: Experts) -> None:
        """Convert one expert into its slot.

        Args:
            slot: of the rank's experts.
            experts: canonical, of one.

        Raises:
            ConfigError: it cannot become an operand of the use case.
            LayoutError: it is of another kind or size than the first one.
        """
        target = fitted(experts, self.use_case, *self._sizes, self._dtype)
        self._check(slot, target.likeness)
        home = self._slots[slot]
        if home is not None and not on_npu(home.l1.device):
            put_operands(target, self.use_case, home)
            self._filled.add(slot)
        else:
            (made,) = to_operands(target, self.use_case)
            sizes = target.hidden, target.intermediate
            self._place(slot, made, target.likeness, sizes, keep=not _share(made, experts))

    def put_operands(self, slot: int, made: ExpertOperands, sizes: tuple[int, int]) -> None:
        """Copy operands that are of the use case already, as the package's own format stores them.

        Args:
            slot: of the rank's experts.
            made: of one expert; their memory stays the caller's.
            sizes: hidden and intermediate_hidden of the operands.

        Raises:
            LayoutError: they are of another kind or size than the first ones.
        """
        likeness = f"operands ({made.l1.dtype}) of {sizes[0]} and {sizes[1]}"
        self._check(slot, likeness)
        self._place(slot, made, likeness, sizes, keep=False)

    def _check(self, slot: int, likeness: str) -> None:
        if likeness != (self._likeness or likeness):
            raise LayoutError(
                f"expert {slot} becomes {likeness}, those before it {self._likeness}; expected experts of one "
                "kind and size. Convert the experts of each layer by themselves."
            )

    def _place(
        self, slot: int, made: ExpertOperands, likeness: str, sizes: tuple[int, int], *, keep: bool = True
    ) -> None:
        """`keep`: whether the operands' own memory may become the slot's; not where it is the caller's."""
        if not self._filled:
            self._likeness, self._sizes = likeness, sizes
            if self._stacked or not on_npu(made.l1.device):
                self._make_stacks(made)
        home = self._slots[slot]
        if home is None:
            copies = {} if keep else {n: one.clone() for n in _NAMES if (one := getattr(made, n)) is not None}
            self._slots[slot] = replace(made, **copies)
        else:
            for name in _NAMES:
                if (place := getattr(home, name)) is not None:
                    place.copy_(getattr(made, name))
        self._filled.add(slot)

    def fill(self, experts: Experts) -> None:
        """Put the same expert into every slot."""
        for slot in range(len(self._slots)):
            self.put(slot, experts)

    def operands(self) -> LayerOperands:
        """The operands of all experts, in the memory that later experts are copied into.

        Raises:
            LayoutError: a slot is empty.
        """
        empty = sorted(set(range(len(self._slots))) - self._filled)
        if empty or not self._slots:
            raise LayoutError(f"slots {empty} of {len(self._slots)} are empty; expected an expert in each. Put them.")
        hidden, intermediate = self._sizes
        assert hidden is not None
        assert intermediate is not None
        columns = self._stacks if self._stacked else {name: self._column(name) for name in _NAMES}
        return as_layer(columns, self.use_case, hidden, intermediate)

    def _column(self, name: str) -> list[Tensor] | None:
        values = [getattr(made, name) for made in self._slots]
        return None if values[0] is None else values

    def _make_stacks(self, first: ExpertOperands) -> None:
        torch.empty(_KEPT, dtype=torch.uint8)  # freed at once: so the temporaries of all conversions keep their pages
        parts = {name: getattr(first, name) for name in _NAMES}
        count = len(self._slots)
        self._stacks = {n: None if part is None else empty_stack(part, count) for n, part in parts.items()}
        for stack in self._stacks.values():
            if stack is not None and not on_npu(stack.device):
                # The kernel gives a page when it is first written: here on all of torch's cores at once, while torch
                # transposes a matrix on one.
                inner(stack).view(torch.uint8).view(-1)[:: mmap.PAGESIZE] = 0
        self._slots = [
            ExpertOperands(**{n: stack[slot] for n, stack in self._stacks.items() if stack is not None})
            for slot in range(count)
        ]


def _share(made: ExpertOperands, experts: Experts) -> bool:
    """Whether an operand is a view of what it was made of: a weight that is stored as it arrives.

    Its owner may change it later (a trainer its weights, on the device too), and an expert that moves to another rank
    is overwritten.
    """
    owned = {tensor.untyped_storage().data_ptr() for tensor in experts.held}
    parts = (getattr(made, name) for name in _NAMES)
    return any(inner(part).untyped_storage().data_ptr() in owned for part in parts if part is not None)
