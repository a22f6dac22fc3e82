"""One call's conversation with the other ranks: header, rows out, rows back. Alone, a rank talks to nobody."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.errors import PeerError
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.header import NAMES, Header, no_facts, shown, unpack, words_of
from vllm_megamoe.ops.twin.link import COMBINE, DISPATCH, HEADER_TAG, Channel, data_tag, empty_bytes, link_of
from vllm_megamoe.ops.twin.state import state_of

STATUS_BYTES = 8
_SOURCE = "torch_api.txt and operator_readme.txt, consistency constraints"
_REMEDY = "Make buffers and calls alike on all ranks."
_REMEDIES = {
    "ccl_buffer_size": "Set HCCL_BUFFSIZE to the same number of MB on all ranks, before the communicator is made.",
    "profile": "Name one profile on all ranks: settings(profile=...) or VLLM_MEGAMOE_PROFILE.",
    "topology": "Name one topology on all ranks: settings(topology=...).",
}


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks know once they have met.

    Attributes:
        counts: int64 [ranks, E], rows that come from each rank for each of this rank's experts.
        tokens: rows of every rank's x.
        received: rows that every rank receives.
    """

    counts: Tensor
    tokens: tuple[int, ...]
    received: tuple[int, ...]


class Session:
    """Begin a call.

    Args:
        buffer: of the call.
        config: its settings.
    """

    def __init__(self, buffer: SymmBuffer, config: Settings) -> None:
        self.rank, self.ranks = buffer.rank_id, buffer.ep_world_size
        self.state = state_of(buffer)
        self.channel: Channel | None = None
        if buffer.group is None or self.ranks == 1:
            return
        link = link_of(buffer.group)
        link.sequence += 1
        self.sequence = link.sequence
        timeout = config.wait_s(first_call=not self.state.calls_completed)
        where = f"mega_moe, rank {self.rank}, call {self.sequence} on its group"
        self.channel = Channel(buffer.group, link, timeout, where)

    def reject(self, error: Exception) -> None:
        """Tell the peers that this rank raises instead of making its call, and why; the caller raises the error then.

        A peer that cannot be told has left. This rank's own reason comes first all the same; the loss is noted on it.
        """
        if self.channel is None:
            return
        none = torch.empty(0, dtype=torch.int64)
        rows = torch.zeros(self.ranks, dtype=torch.int64)
        reason = f"{type(error).__name__}: {error}"
        message = Header(self.sequence, no_facts(self.state.number), none, 0, rows, reason).pack()
        self._tell(error, [(peer, message, HEADER_TAG) for peer in self.channel.peers])

    def _tell(self, error: Exception, messages: Sequence[tuple[int, Tensor, int]]) -> None:
        """Send to each peer (rank, message, tag) what came of the call, and leave it."""
        if self.channel is None:
            return
        for peer, message, tag in messages:
            try:
                self.channel.send(peer, message, tag)
            except PeerError as lost:
                error.add_note(f"Besides, rank {peer} could not be told: {lost}")
        self.channel.abandon()

    def meet(self, read_facts: Callable[[], tuple[int, ...]], counts: Tensor, tokens: int) -> Meeting:
        """Exchange headers.

        Args:
            read_facts: gives those of this rank's call; a rank alone needs none.
            counts: int64 [ranks, E], rows for each rank's experts.
            tokens: rows of x.

        Raises:
            PeerError: a peer is missing, rejected, or makes another call.
        """
        sent = counts.sum(dim=1)
        if self.channel is None:
            return Meeting(counts, (tokens,), tuple(sent.tolist()))
        channel, facts = self.channel, read_facts()
        for peer in channel.peers:
            channel.send(peer, Header(self.sequence, facts, counts[peer], tokens, sent).pack(), HEADER_TAG)
        received, all_tokens, all_rows = counts.clone(), [tokens] * self.ranks, sent.clone()
        memories = {peer: torch.empty(words_of(self.ranks), dtype=torch.int64) for peer in channel.peers}
        works = {peer: channel.receive(peer, memories[peer], HEADER_TAG) for peer in channel.peers}
        for peer in channel.peers:
            channel.wait(peer, works[peer], "it did not make this call")
            header = self._current(peer, memories[peer], counts.shape[1])
            self._compare(peer, header, facts)
            received[peer] = header.counts
            all_tokens[peer] = header.tokens
            all_rows += header.rows
        return Meeting(received, tuple(all_tokens), tuple(all_rows.tolist()))

    def exchange(self, chunks: Sequence[Tensor], expected: Sequence[int], width: int) -> Tensor:
        """Rows on the way to their experts.

        Args:
            chunks: uint8 [n, width] for each rank.
            expected: rows that come from each rank.

        Returns:
            uint8 [sum of expected, width], by rank.
        """
        if self.channel is None:
            return chunks[0]
        sizes = [n * width for n in expected]
        return torch.cat(self._swap([chunk.flatten() for chunk in chunks], sizes, DISPATCH)).view(-1, width)

    def give_back(self, chunks: Sequence[Tensor], expected: Sequence[int], width: int) -> Tensor:
        """Rows on the way home, with a word behind them that says whether their rank succeeded.

        Returns:
            uint8 [sum of expected, width], by rank.

        Raises:
            PeerError: a peer failed in the middle of its call.
        """
        if self.channel is None:
            return chunks[0]
        self.channel.restart_clock()
        good = torch.zeros(STATUS_BYTES, dtype=torch.uint8)
        sizes = [n * width + STATUS_BYTES if n else 0 for n in expected]
        messages = [chunk.flatten() for chunk in chunks]
        for peer in self.channel.peers:
            if len(chunks[peer]):
                messages[peer] = torch.cat([messages[peer], good])
        found = self._swap(messages, sizes, COMBINE)
        rows: list[Tensor] = []
        for rank, message in enumerate(found):
            body, status = message[: expected[rank] * width], message[expected[rank] * width :]
            if status.any():
                raise PeerError(f"{self.channel.where}: rank {rank} failed in the middle of its call. See its log.")
            rows.append(body.view(-1, width))
        self.channel.finish()
        return torch.cat(rows)

    def fail(self, error: Exception, rows: Sequence[int], width: int) -> None:
        """In place of `give_back`: tell those who wait for rows that none will come; the caller raises the error then.

        Args:
            error: why.
            rows: how many rows each rank expects.
        """
        if self.channel is None:
            return
        tag = data_tag(self.sequence, COMBINE)
        failed = [torch.ones(count * width + STATUS_BYTES, dtype=torch.uint8) for count in rows]
        self._tell(error, [(peer, failed[peer], tag) for peer in self.channel.peers if rows[peer]])

    def abandon(self) -> None:
        """Leave the call after an error of the exchange itself."""
        if self.channel is not None:
            self.channel.abandon()

    def _swap(self, messages: list[Tensor], sizes: list[int], way: int) -> list[Tensor]:
        channel = self.channel
        if channel is None:
            return messages
        tag = data_tag(self.sequence, way)
        found = [messages[rank] if rank == self.rank else empty_bytes(size) for rank, size in enumerate(sizes)]
        works = {peer: channel.receive(peer, found[peer], tag) for peer in channel.peers if sizes[peer]}
        for peer in channel.peers:
            if len(messages[peer]):
                channel.send(peer, messages[peer], tag)
        for peer, work in works.items():
            channel.wait(peer, work, "its rows did not come")
        return found

    def _current(self, peer: int, memory: Tensor, experts: int) -> Header:
        """The peer's header of this call; those of calls that this rank rejected come first and are dropped."""
        if self.channel is None:
            raise PeerError("a rank alone has no peers")
        while True:
            header = unpack(memory, experts)
            if header is None:
                raise PeerError(f"{self.channel.where}: rank {peer} sent something else than a header of mega_moe.")
            if header.sequence >= self.sequence:
                return header
            work = self.channel.receive(peer, memory, HEADER_TAG)
            self.channel.wait(peer, work, "it did not make this call")

    def _compare(self, peer: int, header: Header, facts: tuple[int, ...]) -> None:
        where = self.channel.where if self.channel is not None else ""
        if header.failure is not None:
            raise PeerError(f"{where}: rank {peer} rejected its call: {header.failure}")
        if header.sequence != self.sequence:
            raise PeerError(
                f"{where}: rank {peer} is at call {header.sequence}: out of step. All ranks must make the same calls."
            )
        for name, mine, theirs in zip(NAMES, facts, header.facts, strict=True):
            if mine == theirs:
                continue
            if name == "buffer":
                raise PeerError(
                    f"{where}: rank {peer} calls with buffer {theirs} of this group, this rank with buffer {mine} (in "
                    "order of creation). Calls on one group must come in the same order on all ranks."
                )
            raise PeerError(
                f"{where}: {name} is {shown(name, mine)} here and {shown(name, theirs)} on rank {peer}; expected the "
                f"same on all ranks ({_SOURCE}). {_REMEDIES.get(name, _REMEDY)}"
            )
