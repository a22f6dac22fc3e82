"""The operands of a layer's experts as a checkpoint in this package's own format gives them: nothing is converted."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.stream import SHARD_OF, ExpertStream, Shard


class OwnStream(ExpertStream):
    """As ExpertStream, of operands.

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
