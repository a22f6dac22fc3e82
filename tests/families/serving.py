"""The checkpoints and runs that all tests of the families share, each made at its first use."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from families import runs
from families.checkpoints import make_checkpoint
from families.layouts import LAYOUTS, groups
from families.models import FAMILIES
from families.runs import Run
from torch import Tensor

Key = tuple[str, str, str]
"""Layout, family and mode."""


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
    done: dict[Key, list[Run]] = field(default_factory=dict)
    failed: dict[Key, Exception] = field(default_factory=dict)

    def own(self, family: str, replica: int = 0, replicas: int = 1) -> dict[str, Tensor]:
        """What vLLM's own MoE gives on one rank, for the prompts of one data-parallel replica."""
        whole = self.of("one rank", family, "own")[0].results["none"]
        return whole if replicas == 1 else self._part(whole, replica, replicas)

    def of(self, layout: str, family: str, mode: str) -> list[Run]:
        """One engine's ranks; the first request runs the whole group that it belongs to."""
        key = (layout, family, mode)
        if key not in self.done and key not in self.failed:
            (group,) = (group for group in groups(layout) if (family, mode) in group)
            try:
                found = self._serve(layout, group)
            except Exception as e:
                self.failed |= {(layout, *member): e for member in group}
            else:
                self.done |= {(layout, *member): ranks for member, ranks in zip(group, found, strict=True)}
        if key in self.failed:
            raise self.failed[key]
        return self.done[key]

    def _serve(self, layout: str, group: list[tuple[str, str]]) -> list[list[Run]]:
        over = LAYOUTS[layout]
        engines = [runs.engine(name, self.checkpoints.of(name), mode, layout) for name, mode in group]
        shares = [self.checkpoints.prompts[r :: over.replicas] for r in range(over.replicas)]
        by_rank = runs.run(self.folder / f"{layout}, {group[0][0]}", engines, shares, over)
        return [[found[f"{name} {mode}"] for found in by_rank] for name, mode in group]

    def _part(self, whole: dict[str, Tensor], replica: int, replicas: int) -> dict[str, Tensor]:
        """The rows of every `replicas`-th prompt."""
        rows = whole["prompt"].split([len(prompt) - 1 for prompt in self.checkpoints.prompts])
        new = whole["new"].view(*whole["tokens"].shape, -1)[replica::replicas]
        return {
            "prompt": torch.cat(rows[replica::replicas]),
            "new": new.flatten(0, 1),
            "tokens": whole["tokens"][replica::replicas],
        }
