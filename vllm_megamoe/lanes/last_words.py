"""Our errors as the last words on the user's screen: the sentence alone, below whatever vLLM prints.

An error in the process that the user started ends it through `sys.excepthook`, which prints our message in place of the
traceback. One in an engine core or a worker is known to the user's process only as "see above"; such a process logs it
through vLLM's loggers, where we take it down in a folder that the user's process has named and reads out when it ends.
What it is logged with, and what fails because of it in the other processes, is a line each in place of a traceback.

VLLM_LOGGING_LEVEL=DEBUG keeps every traceback.
"""

import atexit
import logging
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_megamoe.errors import MegaMoeError, PeerError

_NOTES = "_VLLM_MEGAMOE_NOTES"
"""Folder of the running engine's notes. The user's process sets it for its children; it is no setting."""

_LEVEL = "VLLM_LOGGING_LEVEL"

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def install() -> None:
    """Show our errors last, in the user's process; take them down, in its children. A second call does nothing."""
    if multiprocessing.parent_process() is None:
        if not isinstance(sys.excepthook, _Hook):
            sys.excepthook = _Hook(sys.excepthook)
        return
    logger = logging.getLogger("vllm")
    if not any(isinstance(handler, _TakeDown) for handler in logger.handlers):
        logger.handlers.insert(0, _TakeDown(logging.ERROR))
        traceback.print_exc = _print_exc(traceback.print_exc)


def listen() -> None:
    """Name the folder for the children's notes, in the user's process and before it starts them."""
    if multiprocessing.parent_process() is not None or _folder() is not None:
        return
    os.environ[_NOTES] = str(Path(tempfile.gettempdir()) / f"vllm-megamoe-{uuid.uuid4().hex}-{os.getpid()}")
    atexit.register(read_out)


def read_out() -> None:
    """Print what the children took down, each message once, and remove the folder."""
    folder = _folder()
    if folder is None:
        return
    del os.environ[_NOTES]
    if not folder.is_dir():
        return
    notes = [path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())]
    shutil.rmtree(folder)
    for note in dict.fromkeys(notes):
        print(note, file=sys.stderr, flush=True)


def _folder() -> Path | None:
    """The folder of this process's engine: for a process of the user's own, one that bears its number."""
    name = os.environ.get(_NOTES, "")
    inherited = multiprocessing.parent_process() is None and not name.endswith(f"-{os.getpid()}")
    return None if inherited or not name else Path(name)


def ours(error: BaseException | None) -> MegaMoeError | None:
    """The first of our errors in a chain of exceptions."""
    return next((each for each in _chain(error) if isinstance(each, MegaMoeError)), None)


_LOST = re.compile(r"\[([^\]\s]+)\]:\d+: Connection (?:reset|closed) by peer")
"""How gloo says that a rank is gone, with the address of its host (gloo, transport/tcp/pair.cc)."""


def lost_rank(error: BaseException | None) -> PeerError | None:
    """What to say where vLLM's own exchange between ranks, not a call of ours, was the first to miss one."""
    found = next((match for each in _chain(error) if (match := _LOST.search(str(each)))), None)
    if found is None:
        return None
    return PeerError(
        f"The connection to a rank of this engine on {found[1]} broke: its process or its host ended. See the logs of "
        "the other workers and hosts, and start all of them again."
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> str:
    """An exception without its traceback, and without the notes that vLLM's workers add of theirs."""
    return str(error) if isinstance(error, MegaMoeError) else f"{type(error).__name__}: {error}"


def _in_short(error: BaseException | None) -> bool:
    """Whether an exception is ours or comes of one that was taken down, and nobody has asked for tracebacks."""
    if error is None or _wants_tracebacks():
        return False
    folder = _folder()
    return ours(error) is not None or (folder is not None and folder.is_dir())


def _wants_tracebacks() -> bool:
    return os.environ.get(_LEVEL, "").upper() == "DEBUG"


class _Hook:
    """`sys.excepthook`, around the one that stood there before."""

    def __init__(self, before: ExceptHook) -> None:
        self.before = before

    def __call__(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        message, folder = ours(error), _folder()
        if _wants_tracebacks() or (message is not error and (folder is None or not folder.is_dir())):
            self.before(kind, error, where)
        elif message is not error:
            print(_said(error), file=sys.stderr, flush=True)
        if message is not None:
            print(message, file=sys.stderr, flush=True)


class _TakeDown(logging.Handler):
    """Writes our errors among the exceptions that vLLM logs in this process; the first one counts.

    It stands before vLLM's own handlers and leaves them the sentence in place of the traceback.
    """

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        message, folder = ours(error) or lost_rank(error), _folder()
        if message is not None and folder is not None:
            try:
                _take_down(folder, str(message))
            except OSError:  # a full disk must not end whoever logs
                self.handleError(record)
        if error is not None and _in_short(error):
            record.msg, record.args = f"{record.getMessage()} {_said(message or error)}", None
            record.exc_info = record.exc_text = None


def _take_down(folder: Path, message: str) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    note = folder / f"{os.getpid()}.txt"
    if not note.exists():
        note.write_text(message, encoding="utf-8")


def _print_exc(before: Callable[..., None]) -> Callable[..., None]:
    """`traceback.print_exc`, with which multiprocessing shows what a process has died of."""

    def print_exc(*args: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and _in_short(error):
            print(_said(ours(error) or error), file=sys.stderr, flush=True)
        else:
            before(*args, **options)

    return print_exc
