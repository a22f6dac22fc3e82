"""The checkpoints and runs that all tests of the families share, each made at its first use."""

from dataclasses import dataclass, field
from pathlib import Path

from families import runs
from families.checkpoints import make_checkpoint
from families.models import FAMILIES
from families.runs import Run
from torch import Tensor


@dataclass
class Checkpoints:
    """Makes each family's checkpoint once, with the log-probabilities that transformers gives for the prompts."""

    folder: Path
    prompts: list[list[int]]
    transformers: dict[str, Tensor] = field(default_factory=dict)

    def of(self, family: str) -> Path:
        place = self.folder / family
        if family not in self.transformers:
            self.transformers[family] = make_checkpoint(FAMILIES[family], place, self.prompts)
        return place


@dataclass
class Serving:
    """Serves groups of families, each group in one process per rank, each once per session."""

    folder: Path
    checkpoints: Checkpoints
    done: dict[tuple[str, str, int], list[Run]] = field(default_factory=dict)
    failed: dict[tuple[bool, int], Exception] = field(default_factory=dict)

    def own(self, family: str) -> dict[str, Tensor]:
        """What vLLM's own MoE gives on one rank."""
        return self._of(family, "own", 1)[0].results["none"]

    def operator(self, family: str, mode: str) -> Run:
        """The operator on one rank."""
        return self._of(family, mode, 1)[0]

    def two_ranks(self, family: str, mode: str) -> list[Run]:
        """The operator on two ranks, tensor and expert parallel, by rank."""
        return self._of(family, mode, 2)

    def _of(self, family: str, mode: str, ranks: int) -> list[Run]:
        every_run = FAMILIES[family].every_run
        if (every_run, ranks) in self.failed:
            raise self.failed[every_run, ranks]
        if (family, mode, ranks) not in self.done:
            try:
                self.done |= self._serve([name for name, f in FAMILIES.items() if f.every_run == every_run], ranks)
            except Exception as e:
                self.failed[every_run, ranks] = e
                raise
        return self.done[family, mode, ranks]

    def _serve(self, families: list[str], ranks: int) -> dict[tuple[str, str, int], list[Run]]:
        keys = [(name, mode) for name in families for mode in (["own"] if ranks == 1 else []) + FAMILIES[name].modes]
        engines = [runs.engine(name, self.checkpoints.of(name), mode, ranks) for name, mode in keys]
        by_rank = runs.run(self.folder / f"{families[0]}-{ranks}", engines, self.checkpoints.prompts, ranks)
        return {(name, mode, ranks): [found[f"{name} {mode}"] for found in by_rank] for name, mode in keys}
