"""Float32 copies of weights, kept between calls when settings(plain_copy=True) says so."""

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.ops.twin.call import Weights
from vllm_megamoe.ops.twin.gemm import block_of

logger = logging.getLogger(__name__)

_Mark = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    """Copies of one weight argument, and what it was made from."""

    mark: _Mark
    plain: tuple[Tensor, ...]


# By the first of the caller's tensors; an entry goes with that tensor.
_copies: MutableMapping[Tensor, _Copy] = WeakIdKeyDictionary()


def copied_bytes() -> int:
    """Bytes of all copies that are held."""
    return sum(tensor.nbytes for copy in _copies.values() for tensor in copy.plain)


def forget_copies() -> None:
    """Drop all copies."""
    _copies.clear()


def with_plain(weights: Weights, nibbles: Nibbles) -> Weights:
    """The weights with their copies, made at the first call.

    A copy is made anew when its source lies elsewhere, or was changed in place as far as torch counts such changes
    (not through `.data`, not for inference tensors).
    """
    mark: _Mark = (nibbles, weights.element, *(_state(tensor) for tensor in (*weights.source, *weights.scales)))
    held = _copies.get(weights.source[0])
    if held is None or held.mark != mark:
        plain = tuple(_unpack(weights, expert, nibbles) for expert in range(weights.count))
        held = _copies[weights.source[0]] = _Copy(mark, plain)
        logger.info(
            "megamoe twin: plain copy of %s, %d experts, %.1f MiB; all copies %.1f MiB "
            "(settings(plain_copy=False) does without)",
            weights.name,
            weights.count,
            sum(tensor.nbytes for tensor in plain) / 2**20,
            copied_bytes() / 2**20,
        )
    return replace(weights, plain=held.plain)


def _unpack(weights: Weights, expert: int, nibbles: Nibbles) -> Tensor:
    return block_of(weights, expert, 0, weights.outputs, nibbles, torch.empty)


def _state(tensor: Tensor) -> tuple[int, int]:
    held = inner(tensor)
    return held.data_ptr(), 0 if held.is_inference() else held._version
