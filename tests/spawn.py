"""Worlds of gloo ranks that serve many test cases: one spawn per world size, a time limit on every case.

A case is a module-level function and one tuple of arguments per rank; a rank calls `function(*arguments)` and sends
back what it returns or raises. A rank that gives no answer in time ends its whole world, and the next case starts a new
one. Ranks are forked from a clean process that has imported torch and the operator and run nothing.
"""

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

START_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank raised."""

    rank: int
    kind: str
    message: str
    details: str


class RankError(AssertionError):
    """A rank failed or gave no answer; the text names it."""


def _serve(rank: int, size: int, meeting_point: str | None, pipe: Connection) -> None:
    """A rank's life: join the group, then answer cases until the pipe closes."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    if meeting_point:
        place = f"file://{meeting_point}"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    pipe.send("ready")
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # the group may be broken on purpose, and its destructors could wait for a peer
        try:
            answer = function(*arguments)
        except Exception as e:  # sent to the test, which judges it
            answer = Failure(rank, type(e).__name__, str(e), traceback.format_exc())
        try:
            pipe.send(answer)
        except BrokenPipeError:
            os._exit(0)


class World:
    """Ranks 0 .. size-1, started at the first case; unless `joined`, its cases make their process groups themselves."""

    def __init__(self, size: int, *, joined: bool = True) -> None:
        self.size = size
        self._joined = joined
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], limit_s: float = 60) -> list[Any]:
        """What each rank returned, in order.

        Raises:
            RankError: a rank raised; its traceback is in the text. Or none came in `limit_s` seconds.
        """
        answers = self.outcomes(function, arguments, limit_s)
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        if failed:
            raise RankError("\n".join(f"rank {f.rank} of {self.size}: {f.details}" for f in failed))
        return answers

    def outcomes(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], limit_s: float = 60
    ) -> list[Any]:
        """What each rank returned, or the Failure that it raised, in order."""
        if len(arguments) != self.size:
            raise ValueError(f"{len(arguments)} tuples of arguments for {self.size} ranks")
        if not self._processes:
            self._start()
        for pipe, mine in zip(self._pipes, arguments, strict=True):
            pipe.send((function, mine))
        return self._collect(limit_s, "the case")

    def stop(self, patience_s: float = 5) -> None:
        """End the ranks; the next case starts new ones."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(patience_s)
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
        self._processes, self._pipes = [], []
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "ml_dtypes", "vllm_megamoe.ops"])
        self._folder = tempfile.TemporaryDirectory()
        meeting_point = str(Path(self._folder.name) / "store") if self._joined else None
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, meeting_point, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._collect(START_LIMIT_S, "the start")

    def _collect(self, limit_s: float, what: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline = monotonic() + limit_s
        while len(answers) < self.size:
            waiting = {self._pipes[r]: r for r in range(self.size) if r not in answers}
            for pipe in wait(list(waiting), timeout=max(0.0, deadline - monotonic())):
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    answers[rank] = self._pipes[rank].recv()
                except EOFError:
                    self.stop(0)
                    raise RankError(f"rank {rank} of {self.size} died during {what}") from None
            if monotonic() >= deadline and len(answers) < self.size:
                silent = sorted(set(range(self.size)) - set(answers))
                raised = [a.details for a in answers.values() if isinstance(a, Failure)]
                self.stop(0)
                raise RankError(f"ranks {silent} of {self.size} gave no answer to {what} in {limit_s:g} s; {raised}")
        return [answers[rank] for rank in range(self.size)]
