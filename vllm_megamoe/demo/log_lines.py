"""What a log says last, for people who wait."""

import re
from pathlib import Path

_VLLM_LINE = re.compile(r"(?:INFO|WARNING|ERROR) \d\d-\d\d [\d:]{8} \[[^\]]+\] (.*)")
_DULL = re.compile(r"Route: |Available routes|\W*$|[ ▄▀█]*(version|model) ")
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
