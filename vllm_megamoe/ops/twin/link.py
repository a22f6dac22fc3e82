"""Messages between the ranks of a group: sent at once, waited for with a limit, and numbered.

Every attempt at a call sends exactly one header to each peer, also one that is rejected. So a rank that raised leaves
its peers with an explanation instead of a wait, and all can go on with the next call.
"""

import time
import weakref
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.errors import PeerError

HEADER_TAG = 0x4D4D01
DISPATCH, COMBINE = 0, 1
_DATA_TAGS, _TAGGED_CALLS = 1 << 29, 1 << 28
_BROKEN = "its process ended, or it gave up waiting"


class Link:
    """This rank's side of a group, shared by all its buffers.

    Attributes:
        sequence: calls attempted on the group so far.
    """

    def __init__(self) -> None:
        self.sequence = 0
        # Messages that nobody took or sent yet: gloo still uses their memory, so it must stay.
        self._unfinished: list[tuple[dist.Work, Tensor]] = []

    def keep(self, messages: Iterable[tuple[dist.Work, Tensor]]) -> None:
        """Hold messages' memory beyond the call."""
        self._unfinished.extend(messages)


_links: "weakref.WeakKeyDictionary[ProcessGroup, Link]" = weakref.WeakKeyDictionary()


def link_of(group: ProcessGroup) -> Link:
    """The one link of a group in this process."""
    return _links.setdefault(group, Link())


def data_tag(sequence: int, way: int) -> int:
    """Tag of rows on a way of a call. No two calls share one, so what a failed call left behind is never taken."""
    return _DATA_TAGS + 2 * (sequence % _TAGGED_CALLS) + way


class Channel:
    """The messages of one call.

    Args:
        group: of the buffer.
        link: of the group.
        timeout_s: longest wait for a peer, in each phase of the call.
        where: how errors call this call.
    """

    def __init__(self, group: ProcessGroup, link: Link, timeout_s: float, where: str) -> None:
        self.group, self.link, self.timeout_s, self.where = group, link, timeout_s, where
        self.peers = [rank for rank in range(group.size()) if rank != group.rank()]
        self._sent: list[tuple[int, dist.Work, Tensor]] = []
        self._awaited: dict[dist.Work, Tensor] = {}
        self._deadline = 0.0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begin a phase: its waits may take timeout_s together."""
        self._deadline = time.monotonic() + self.timeout_s

    def send(self, peer: int, message: Tensor, tag: int) -> None:
        """Start to send a contiguous tensor."""
        try:
            work = dist.isend(message, group=self.group, group_dst=peer, tag=tag)
        except RuntimeError as e:
            raise self._broken(peer, e) from e
        if work is not None:
            self._sent.append((peer, work, message))

    def receive(self, peer: int, memory: Tensor, tag: int) -> dist.Work:
        """Start to receive into a contiguous tensor."""
        try:
            work = dist.irecv(memory, group=self.group, group_src=peer, tag=tag)
        except RuntimeError as e:
            raise self._broken(peer, e) from e
        if work is None:
            raise PeerError(f"{self.where}: this rank is not a member of the buffer's group.")
        self._awaited[work] = memory
        return work

    def wait(self, peer: int, work: dist.Work, what: str) -> None:
        """Wait for a message until the phase's time is over."""
        left = max(self._deadline - time.monotonic(), 0.001)
        try:
            work.wait(timedelta(seconds=left))
        except RuntimeError as e:
            if "Timed out" in str(e):
                raise PeerError(
                    f"{self.where}: rank {peer} is missing: {what} within {self.timeout_s:g} s. Every rank of the "
                    "group must make every call, idle ones with no tokens. See that rank's log; "
                    "settings(timeout_s=...), else VLLM_MEGAMOE_TIMEOUT_S, sets the time."
                ) from e
            raise self._broken(peer, e) from e
        self._awaited.pop(work, None)

    def finish(self) -> None:
        """Wait until the peers took what was sent."""
        while self._sent:
            peer, work, _ = self._sent[-1]
            self.wait(peer, work, "it did not take this rank's rows")
            self._sent.pop()

    def abandon(self) -> None:
        """Leave what is still on its way to the link, and do not wait for it."""
        self.link.keep((work, memory) for _, work, memory in self._sent)
        self.link.keep(self._awaited.items())
        self._sent.clear()
        self._awaited.clear()

    def _broken(self, peer: int, error: RuntimeError) -> PeerError:
        reason = str(error).splitlines()[0][:300]
        return PeerError(f"{self.where}: the connection to rank {peer} broke: {_BROKEN} ({reason}). See its log.")


def empty_bytes(count: int) -> Tensor:
    """Memory for a message."""
    return torch.empty(count, dtype=torch.uint8)
