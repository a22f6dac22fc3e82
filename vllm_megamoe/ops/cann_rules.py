"""The profile's rules before the operator's own package is called: from metadata of the tensors, no device is asked.

They apply when a profile is set. What the package refuses anyway comes here with a remedy, what the device gets wrong
without a word is refused at all.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from vllm_megamoe.layout.acl import normalise_dtype
from vllm_megamoe.ops.cann_facts import tensor_call_facts
from vllm_megamoe.ops.capture import is_capturing
from vllm_megamoe.ops.settings import Settings, active_settings
from vllm_megamoe.ops.twin.checks.profile import raise_broken
from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.profile import Profile, find_profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call

_SIZES = ("num_experts", "num_max_tokens_per_rank", "num_topk", "hidden")
_MODES = (
    "max_recv_token_num",
    "dispatch_quant_mode",
    "combine_quant_mode",
    "comm_alg",
    "topk_weights_type",
    "combine_comm_mode",
)


@dataclass(slots=True)
class _Communicator:
    """Buffers of one process group: how many were made, and the configuration of the first."""

    made: int = 0
    first: BufferFacts | None = None


_settings: "weakref.WeakKeyDictionary[Any, Settings]" = weakref.WeakKeyDictionary()
"""The settings that each buffer was created with; the package's own buffer has no place for them."""

_communicators: "weakref.WeakKeyDictionary[Any, _Communicator]" = weakref.WeakKeyDictionary()


@contextmanager
def checked_creation(group: Any, sizes: tuple[int, ...], arguments: Mapping[str, Any]) -> Iterator[None]:
    """Refuse a creation that the profile's product does not take; remember it when the block has succeeded.

    Buffers that were made without a profile are not counted.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    profile = _profile()
    if profile.product == "none":
        yield
        return
    communicator = _communicators.setdefault(group, _Communicator())
    given = dict(zip(_SIZES, sizes, strict=False)) | {name: arguments[name] for name in _MODES}
    facts = BufferFacts(
        ep_world_size=group.size(),
        dispatch_quant_out_dtype=_name(arguments["dispatch_quant_out_dtype"]),
        buffers_before=communicator.made,
        capturing=is_capturing(),
        earlier=communicator.first,
        **given,
    )
    raise_broken(broken_by_buffer(profile, facts))
    yield
    communicator.made += 1
    communicator.first = communicator.first or replace(facts, capturing=False)


def check_call(
    x: Tensor, topk_weights: Tensor, weights: Sequence[Sequence[Tensor]], sym_buffer: Any, arguments: Mapping[str, Any]
) -> None:
    """Refuse a call that the profile's product does not take.

    Args:
        x, topk_weights, sym_buffer: of the call.
        weights: l1_weights and l2_weights as lists.
        arguments: the others, lists as lists.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    profile = _profile(sym_buffer)
    if profile.product == "none":
        return
    communicator = _communicators.get(sym_buffer.group)
    # Older revisions lack some of the modes, which then have their default.
    said: dict[str, Any] = {name: getattr(sym_buffer, name) for name in _SIZES}
    said |= {name: getattr(sym_buffer, name) for name in _MODES if hasattr(sym_buffer, name)}
    facts = BufferFacts(
        ep_world_size=int(getattr(sym_buffer.ep_world_size, "value", sym_buffer.ep_world_size)),
        dispatch_quant_out_dtype=_name(sym_buffer.dispatch_quant_out_dtype),
        rank_num_per_server=getattr(sym_buffer, "rank_num_per_server", 0),
        earlier=None if communicator is None else communicator.first,
        **said,
    )
    window = int(getattr(sym_buffer.ccl_buffer_size, "value", sym_buffer.ccl_buffer_size))
    call = tensor_call_facts(x, topk_weights, weights, arguments, window)
    raise_broken(judge(profile, facts, call))


def remember(sym_buffer: Any) -> Any:
    """Let later calls with this buffer follow the settings of its creation, as the twin's do; returns the buffer."""
    _settings[sym_buffer] = active_settings() or Settings()
    return sym_buffer


@lru_cache(maxsize=1024)
def judge(profile: Profile, buffer: BufferFacts, call: CallFacts) -> list[Broken]:
    """What buffer and call break. Kept, because the calls of a layer are all alike but for their rows."""
    return [*broken_by_buffer(profile, buffer), *broken_by_call(profile, buffer, call)]


def _profile(sym_buffer: Any = None) -> Profile:
    """The profile of the open settings, else the buffer's; its topology is the communicator's where none is named."""
    config = active_settings() or (_settings.get(sym_buffer) if sym_buffer is not None else None) or Settings()
    topo_type = getattr(sym_buffer, "topo_type", 0)
    found = config.found_profile
    return find_profile(config.profile, "urma") if found.is_950 and config.topology == "auto" and topo_type else found


def _name(value: Any) -> str | None:
    found = normalise_dtype(value, "dispatch_quant_out_dtype")
    return None if found is None else found.name
