"""The baseline: the same checkpoint run by vLLM's own MoE path, one worker, the plugin switched off."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from vllm_megamoe.demo.cache import Cache
from vllm_megamoe.demo.comparison import Recorded, record
from vllm_megamoe.demo.server import serving

# vLLM's own MoE on CPU does not run with expert parallelism, so the baseline has one worker.
_ENVIRONMENT = {"VLLM_PLUGINS": "", "VLLM_CPU_KVCACHE_SPACE": "1"}


def make_baseline(console: Console, cache: Cache, options: list[str], environment: Mapping[str, str]) -> None:
    """Serve the checkpoint without the plugin, record what it answers, and write it to the cache."""
    with serving(console, cache.checkpoint, options, cache.log("baseline"), {**environment, **_ENVIRONMENT}) as client:
        recorded = record(client)
    part = cache.baseline.with_suffix(".part")
    part.write_text(json.dumps([dataclasses.asdict(one) for one in recorded]), encoding="utf-8")
    part.rename(cache.baseline)


def read_baseline(path: Path) -> list[Recorded]:
    """Return what `make_baseline` wrote."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [
        Recorded(
            entry["tokens"],
            entry["prompt_length"],
            [{int(token): value for token, value in place.items()} for place in entry["top"]],
        )
        for entry in entries
    ]
