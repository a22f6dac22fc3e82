"""The experts of a layer as a checkpoint's tensors arrive: each is read when it is whole, and its sources are dropped.

    take   a tensor of one expert's projection     ->  held until the expert has all of its parts
           the last one of an expert                ->  read_projection x 3, join_expert, `finish`
    settle the load is over, or a call comes        ->  what is held must be nothing, or it is an error with names

A format may have parts that are there or not and that change values (zero points, g_idx). `expect` says which this
layer has, from the files' headers. Where nobody could look (a hub's files that were not here yet), whether an expert is
whole is known only when the load is over: `settle` reads all of them then, and learns which parts there are. From then
on an expert is read with its last tensor; the same holds when weights are loaded again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from torch import Tensor

from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.stored.matrix import Matrix, join_expert
from vllm_megamoe.checkpoint.stored.part import Stored, read_projection
from vllm_megamoe.errors import CheckpointError, MegaMoeError
from vllm_megamoe.experts.canonical import Experts

Shard = Literal["w1", "w2", "w3"]
"""A projection: gate, down, up, as vLLM's loaders name them."""

SHARDS: tuple[Shard, ...] = get_args(Shard)
SHARD_OF: Mapping[str, Shard] = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
Key = tuple[Shard, str]
"""A projection and one of its parts."""

_SHOWN = 4
"""Names in a message; the rest is a number."""


class ExpertStream:
    """What has arrived of a layer's experts on this rank.

    Args:
        layer: the experts' name, `model.layers.0.mlp.experts`, for messages.
        name_of: the checkpoint's name of an expert's projection, `model.layers.0.mlp.experts.3.gate_proj`.
        stored: how the format stores a projection.
        hidden, intermediate: H and I of the checkpoint, without padding.
        experts: global ids of this rank's experts, in the order of its slots.
        finish: takes the slot of an expert and its canonical form, of one expert.
        check: looks at each projection that was read, with its name; raises what is wrong with it.

    Attributes:
        copies: whether a tensor that must wait is copied, because its memory belongs to somebody who writes into it
            again. A checkpoint's own files need no copy: their pages are the kernel's.
        one_expert_each: whether every tensor is one expert's, whatever its shape is; else a 3-D one is of several.
    """

    one_expert_each = False

    def __init__(
        self,
        layer: str,
        stored: Stored,
        hidden: int,
        intermediate: int,
        experts: Sequence[int],
        name_of: Callable[[int, Shard], str],
        finish: Callable[[int, Experts], None],
        check: Callable[[Matrix, str], None] | None = None,
    ) -> None:
        self.layer = layer
        self.stored = stored
        self.copies = False
        self._sizes: dict[Shard, tuple[int, int]] = {
            "w1": (intermediate, hidden),
            "w2": (hidden, intermediate),
            "w3": (intermediate, hidden),
        }
        self._slots = {expert: slot for slot, expert in enumerate(experts)}
        self._name_of = name_of
        self._finish, self._check = finish, check
        self._held: dict[int, dict[Key, Tensor]] = {}
        self._unread = set(experts)  # by the first load
        self._broken: dict[int, MegaMoeError] = {}  # until they come anew
        self._first = True
        self._required = frozenset((shard, part.name) for shard in SHARDS for part in stored.parts if part.required)
        optional = any(not part.required for part in stored.parts)
        self._expected: frozenset[Key] | None = None if optional else self._required
        self._learns = optional

    @property
    def started(self) -> bool:
        """Whether a tensor of this rank's experts has arrived."""
        return bool(self._held) or len(self._unread) < len(self._slots) or not self._first

    def stand_in(self, experts: Sequence[int]) -> None:
        """The experts of this rank's slots from now on: they have been moved between ranks."""
        self._slots = {expert: slot for slot, expert in enumerate(experts)}

    def expect(self, parts: Mapping[str, frozenset[str]]) -> None:
        """Say which parts this layer has in the files, so that experts of every format are read at once.

        Args:
            parts: by projection (`gate_proj`). Names that the format does not have are passed over, because a model may
                rename them. An empty mapping says nothing.
        """
        known = {part.name for part in self.stored.parts}
        if parts:
            there = {(SHARD_OF[projection], part) for projection, names in parts.items() for part in names & known}
            self._expected = self._required | there

    def take(self, shard: Shard, part: str, expert: int, tensor: Tensor) -> bool:
        """One tensor of one expert.

        Args:
            shard: the projection.
            part: of the format, `weight_scale`.
            expert: global id.
            tensor: as the checkpoint has it.

        Returns:
            Whether it is an expert of this rank; another rank's tensor is not looked at, so it is never read.

        Raises:
            CheckpointError: it came before in the first load, or the expert that it makes whole is not what the format
                says.
        """
        if expert not in self._slots:
            return False
        held = self._held.setdefault(expert, {})
        if self._first and ((shard, part) in held or expert not in self._unread):
            raise CheckpointError(
                f"{self._name(expert, (shard, part))} came twice; expected it once. Two files of the checkpoint hold "
                "the same tensor: remove the one that does not belong to it."
            )
        held[shard, part] = tensor.detach()
        if held.keys() == self._expected:
            self._read(expert)
        elif self.copies:
            held[shard, part] = tensor.detach().clone()
        return True

    def settle(self) -> None:
        """The load is over: nothing may be left that is not whole. Does nothing where nothing has arrived since.

        Raises:
            CheckpointError: an expert lacks tensors, which are named; after the first load also: one got none. What
                came of it is dropped.
            MegaMoeError: an expert was not what the format says, and has not come anew; what was said then.
        """
        if not (self._first or self._held or self._broken):
            return
        none_read = self._expected is None or len(self._unread) == len(self._slots)
        # Files may have parts that a model's loader keeps to itself.
        if (
            self._learns
            and self._held
            and none_read
            and all(self._required <= held.keys() for held in self._held.values())
        ):
            # A part that one expert has, all have: without its zero points an expert would be read as another one.
            self._expected = frozenset(key for held in self._held.values() for key in held)
            for expert in sorted(self._held):
                if self._held[expert].keys() == self._expected:
                    self._read(expert)
        waiting = sorted({*self._held, *self._unread} - self._broken.keys() if self._first else self._held)
        if waiting:
            expected = self._expected or self._required
            lacking = [(e, key) for e in waiting for key in sorted(expected - self._held.get(e, {}).keys())]
            torn = CheckpointError(self._incomplete(lacking, len(waiting)))
            # What came stays out: with tensors of a later load it would make an expert of two.
            self._held.clear()
            self._broken |= dict.fromkeys(waiting, torn)
        for error in self._broken.values():
            raise error
        self._first = False

    def skip_first(self) -> None:
        """There is no first load: the experts were filled otherwise."""
        self._unread.clear()
        self._first = False

    def _read(self, expert: int) -> None:
        """Hand on an expert that is whole. One that is not what the format says is remembered, so nobody serves it."""
        held = self._held.pop(expert)
        try:
            gate, down, up = (self._matrix(expert, shard, held) for shard in SHARDS)
            self._finish(self._slots[expert], join_expert(gate, up, down, f"{self.layer}.{expert}"))
        except MegaMoeError as error:
            self._broken[expert] = error
            raise
        self._broken.pop(expert, None)
        self._unread.discard(expert)

    def _matrix(self, expert: int, shard: Shard, held: Mapping[Key, Tensor]) -> Matrix:
        where = self._name_of(expert, shard)
        parts = {part: tensor for (of, part), tensor in held.items() if of == shard}
        matrix = read_projection(self.stored, parts, *self._sizes[shard], where)
        if self._check is not None:
            self._check(matrix, where)
        return matrix

    def _name(self, expert: int, key: Key) -> str:
        return f"{self._name_of(expert, key[0])}.{key[1]}"

    def _incomplete(self, lacking: Sequence[tuple[int, Key]], experts: int) -> str:
        names = ", ".join(self._name(expert, key) for expert, key in lacking[:_SHOWN])
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        if not self._first:
            return (
                f"{self.layer}: {experts} experts were loaded again in part: {names}{more} did not come; expected all "
                "tensors of an expert before the next step. Load these experts again as a whole."
            )
        whole = len(self._slots) - experts
        return (
            f"{self.layer}: {names}{more} did not come; {whole} of {len(self._slots)} experts of this rank are whole, "
            f"expected all. Copy the checkpoint anew; its index must list every file."
        )


class OwnStream(ExpertStream):
    """As ExpertStream, of operands in this package's own format: nothing is converted.

    Args:
        layer, hidden, intermediate, experts, name_of: as ExpertStream.
        own: the layer's entry.
        finish: takes the slot of an expert and its tensors, field of ExpertOperands -> tensor.
    """

    one_expert_each = True

    def __init__(
        self,
        layer: str,
        own: OwnLayer,
        hidden: int,
        intermediate: int,
        experts: Sequence[int],
        name_of: Callable[[int, Shard], str],
        finish: Callable[[int, Mapping[str, Tensor]], None],
    ) -> None:
        super().__init__(layer, own, hidden, intermediate, experts, name_of, finish=lambda slot, experts: None)
        self._keys = {field: (SHARD_OF[PARTS[field][0]], PARTS[field][1]) for field in own.tensors}
        self._required = self._expected = frozenset(self._keys.values())
        self._finish_operands = finish

    def _read(self, expert: int) -> None:
        held = self._held[expert]
        self._finish_operands(self._slots[expert], {field: held[key] for field, key in self._keys.items()})
        del self._held[expert]
        self._broken.pop(expert, None)
        self._unread.discard(expert)
