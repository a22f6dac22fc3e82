"""What the demo keeps between runs: checkpoint, logs, compiled graphs and the baseline.

The baseline is what vLLM's own MoE makes of the checkpoint: one worker, the plugin switched off. The names of
checkpoint and baseline carry a key of the code that made them, so a change makes them anew.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_megamoe.demo.comparison import Recorded, record
from vllm_megamoe.testing.server import Server

_PACKAGE = Path(__file__).parents[1]
_CHECKPOINT_SOURCES = ("demo/checkpoint.py", "testing/tokenizer.py")
_BASELINE_SOURCES = ("demo/baseline.py", "demo/comparison.py", "testing/server.py")


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder of one demo: checkpoint, baseline, logs and vLLM's compiled graphs."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's folder; its name changes with the code that writes it."""
        return self.folder / f"qwen3-moe-{_key(_CHECKPOINT_SOURCES, 'transformers')}"

    @property
    def baseline(self) -> Path:
        """The baseline's file; its name changes with the checkpoint, the questions and vLLM's version."""
        return self.folder / f"baseline-{_key(_CHECKPOINT_SOURCES + _BASELINE_SOURCES, 'transformers', 'vllm')}.json"

    def log(self, name: str) -> Path:
        """The log of one of the demo's programs."""
        return self.folder / f"{name}.log"

    @property
    def compiled(self) -> Path:
        """vLLM's own cache, here so that a removed folder leaves nothing elsewhere."""
        return self.folder / "vllm"


def _key(sources: tuple[str, ...], *distributions: str) -> str:
    digest = hashlib.sha256()
    for name in sources:
        digest.update((_PACKAGE / name).read_bytes())
    for name in distributions:
        digest.update(importlib.metadata.version(name).encode())
    return digest.hexdigest()[:10]


# vLLM's own MoE on CPU does not run with expert parallelism, so the baseline has one worker.
_WITHOUT_US = {"VLLM_PLUGINS": "", "VLLM_CPU_KVCACHE_SPACE": "1"}


def make_baseline(cache: Cache, server: Server, environment: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Run a server of the checkpoint without the plugin, record what it answers, and write it to the cache."""
    with server.running({**environment, **_WITHOUT_US}, tell) as client:
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
