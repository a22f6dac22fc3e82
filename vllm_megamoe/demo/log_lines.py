"""What a log says last, for people who wait."""

import re
from pathlib import Path

_VLLM_LINE = re.compile(r"(?:INFO|WARNING|ERROR) \d\d-\d\d [\d:]{8} \[[^\]]+\] (.*)")
_DULL = re.compile(r"Route: |Available routes|\W*$|[ ▄▀█]*(version|model) ")
# At the line's beginning or right after a prefix, `(Worker pid=7) ERROR 01-31 12:00:00 [worker.py:9] ValueError: ...`
_ERROR = re.compile(r"(?:^|[\])] )(?:\w+\.)*(\w*(?:Error|Exception): \S.*)$", re.MULTILINE)
_READ_BYTES = 16_384


def last_message(log: Path, width: int = 70) -> str:
    """Return the last message of vLLM's in a log, without its prefix and cut to `width`; "" when there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _READ_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    messages = [found[1].strip() for found in _VLLM_LINE.finditer(text) if not _DULL.match(found[1])]
    if not messages:
        return ""
    return messages[-1] if len(messages[-1]) <= width else messages[-1][: width - 1] + "…"


def first_error(text: str) -> str:
    """Return the first exception that a log tells of, "" when there is none: what follows is mostly its echo.

    A worker's exception ends the engine, which ends the server, and each writes a traceback of its own.
    """
    found = _ERROR.search(text)
    return found[1] if found else ""
