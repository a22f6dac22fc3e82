"""Processes that answer one case after the other: started once, a time limit on every case.

A case is a module-level function and one tuple of arguments per rank; a rank calls `function(*arguments)` and sends
back what it returns or raises. A rank that gives no answer in time, or dies, ends all ranks, and the next case starts
new ones. `Ranks` holds this; `World` is its gloo form for the operator, `engines.EngineRanks` the one with vLLM.
"""

import importlib
import multiprocessing
import os
import pickle
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

from vllm_megamoe.testing.process import shared_memory

START_LIMIT_S = 300.0
CASE_LIMIT_S = 60.0
GROUP_LIMIT_S = 60.0  # for one collective of a world, so that a rank that waits for a dead one says so

READY = pickle.dumps("ready")
"""What a rank sends once it can take cases."""

_PRELOADED = ("torch", "torch.distributed", "ml_dtypes", "vllm_megamoe.ops")
"""Imported once in the clean process that a world's ranks are forked from; one that is not installed is left out."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank raised."""

    rank: int
    kind: str
    message: str
    details: str


class RankError(AssertionError):
    """A rank failed or gave no answer; the text names it."""


def answer_cases(rank: int, pipe: Connection) -> None:
    """Answer cases until the other end closes: the life of a rank, after it has sent READY."""
    while True:
        try:
            case = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments = pickle.loads(case)
            answer = pickle.dumps(function(*arguments))
        except Exception as e:  # sent to the test, which judges it
            answer = pickle.dumps(Failure(rank, type(e).__name__, str(e), traceback.format_exc()))
        try:
            pipe.send_bytes(answer)
        except BrokenPipeError:
            return


class Ranks(ABC):
    """Ranks 0 .. size-1, started at the first case."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pipes: list[Connection] = []

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], limit_s: float = CASE_LIMIT_S
    ) -> list[Any]:
        """Return what each rank returned, in order.

        Raises:
            RankError: a rank raised; its traceback is in the text. Or none came in `limit_s` seconds.
        """
        answers = self.outcomes(function, arguments, limit_s)
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        if failed:
            raise RankError("\n".join(f"rank {f.rank} of {self.size}: {f.details}" for f in failed))
        return answers

    def outcomes(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], limit_s: float = CASE_LIMIT_S
    ) -> list[Any]:
        """Return what each rank returned, or the Failure that it raised, in order.

        Raises:
            RankError: a rank died, or gave no answer in `limit_s` seconds.
            ValueError: not one tuple of arguments per rank.
        """
        if len(arguments) != self.size:
            raise ValueError(f"{len(arguments)} tuples of arguments for {self.size} ranks; expected one per rank")
        if not self._pipes:
            self._pipes = self._start()
            self._collect(START_LIMIT_S, "the start")
        for pipe, mine in zip(self._pipes, arguments, strict=True):
            pipe.send_bytes(pickle.dumps((function, mine)))
        return self._collect(limit_s, "the case")

    def stop(self, patience_s: float = 5) -> None:
        """End the ranks; the next case starts new ones."""
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        self._end(patience_s)

    @abstractmethod
    def _start(self) -> list[Connection]:
        """Start all ranks and return the pipe to each; a rank sends READY once it takes cases."""

    @abstractmethod
    def _end(self, patience_s: float) -> None:
        """Wait for the ranks, whose pipes are closed, and end those that are still there after `patience_s`."""

    def _story(self) -> str:
        """What there is to read about ranks that gave no answer."""
        return ""

    def _collect(self, limit_s: float, what: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline = monotonic() + limit_s
        while len(answers) < self.size:
            waiting = {self._pipes[r]: r for r in range(self.size) if r not in answers}
            for pipe in wait(list(waiting), timeout=max(0.0, deadline - monotonic())):
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                except (EOFError, ConnectionResetError):
                    raise self._lost(f"rank {rank} of {self.size} died during {what}") from None
            if monotonic() >= deadline and len(answers) < self.size:
                silent = sorted(set(range(self.size)) - set(answers))
                raised = [a.details for a in answers.values() if isinstance(a, Failure)]
                raise self._lost(f"ranks {silent} of {self.size} gave no answer to {what} in {limit_s:g} s; {raised}")
        return [answers[rank] for rank in range(self.size)]

    def _lost(self, what: str) -> RankError:
        """End all ranks, and return the error that says why."""
        error = RankError(what + self._story())
        self.stop(0)
        return error


class World(Ranks):
    """Ranks of one gloo group, forked from a clean process that has imported torch and the operator and run nothing.

    Args:
        size: how many.
        joined: False when its cases make their process groups themselves.
        backend: of the group; `hccl` gives each rank the NPU of its number.
    """

    def __init__(self, size: int, *, joined: bool = True, backend: str = "gloo") -> None:
        super().__init__(size)
        self._joined, self._backend = joined, backend
        self._processes: list[BaseProcess] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _start(self) -> list[Connection]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._folder = tempfile.TemporaryDirectory()
        meeting_point = str(Path(self._folder.name) / "store") if self._joined else None
        pipes = []
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_live, args=(rank, self.size, meeting_point, self._backend, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            pipes.append(ours)
        return pipes

    def _end(self, patience_s: float) -> None:
        for process in self._processes:
            process.join(patience_s)
            if process.is_alive():
                process.kill()  # one that ends at this moment is no error to it, as it is to os.kill
                process.join()
        self._processes = []
        if self._folder:
            self._folder.cleanup()
            self._folder = None


def _live(rank: int, size: int, meeting_point: str | None, backend: str, pipe: Connection) -> None:
    """A rank of a world: join the group, then answer cases until the pipe closes."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)  # the matrices are small, and ranks share the cores
    if backend == "hccl":
        importlib.import_module("torch_npu").npu.set_device(rank)
    if meeting_point:
        limit = timedelta(seconds=GROUP_LIMIT_S)
        place = f"file://{meeting_point}"
        dist.init_process_group(backend, init_method=place, rank=rank, world_size=size, timeout=limit)
    pipe.send_bytes(READY)
    answer_cases(rank, pipe)
    for block in shared_memory(os.getpid()):  # a case may have used vLLM's groups, which leave theirs
        block.unlink(missing_ok=True)
    os._exit(0)  # the group may be broken on purpose, and its destructors could wait for a peer
