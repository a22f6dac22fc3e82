"""What the demo keeps between runs, and when it is out of date."""

import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_CHECKPOINT_SOURCES = ("checkpoint.py", "tokenizer.py", "weights.py")
_BASELINE_SOURCES = ("baseline.py", "client.py", "comparison.py")


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
        digest.update((_HERE / name).read_bytes())
    for name in distributions:
        digest.update(importlib.metadata.version(name).encode())
    return digest.hexdigest()[:10]
