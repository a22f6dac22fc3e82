"""The checkpoints and runs that all tests of the families share, each made at its first use."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from families.layouts import LAYOUTS
from families.models import FAMILIES, VOCABULARY
from families.steps import observe
from torch import Tensor

from vllm_megamoe.testing.checkpoints import write_checkpoint
from vllm_megamoe.testing.engines import EngineRanks, serve

# vLLM's rotary kernel for CPUs misreads the strided rows of latent attention, so that a row's values depend on its
# neighbours; its own PyTorch form of the same operation agrees with transformers.
SAME_FOR_ALL: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "max_model_len": 128,
    "max_num_batched_tokens": 128,
    "max_logprobs": VOCABULARY,
    "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]},
}

Key = tuple[str, str, str]
"""Layout, family and mode."""


@dataclass(frozen=True)
class Run:
    """What one rank of an engine gave, by damage; `none` is the whole engine."""

    results: dict[str, dict[str, Tensor]]
    layers: list[dict[str, Any]]


@dataclass
class Checkpoints:
    """Makes each family's checkpoint once, with the log-probabilities that transformers gives for the prompts."""

    folder: Path
    prompts: list[list[int]]
    transformers: dict[str, Tensor] = field(default_factory=dict)

    def of(self, family: str) -> Path:
        place = self.folder / family
        if family not in self.transformers:
            checkpoint = write_checkpoint(family, "bf16", place)
            self.transformers[family] = torch.cat(checkpoint.logprobs(self.prompts))
        return place


@dataclass
class Serving:
    """Serves families in the session's rank processes, each engine once."""

    ranks: Callable[[int], EngineRanks]
    checkpoints: Checkpoints
    done: dict[Key, list[Run]] = field(default_factory=dict)
    failed: dict[Key, Exception] = field(default_factory=dict)

    def own(self, family: str, replica: int = 0, replicas: int = 1) -> dict[str, Tensor]:
        """What vLLM's own MoE gives on one rank, for the prompts of one data-parallel replica."""
        whole = self.of("one rank", family, "own")[0].results["none"]
        return whole if replicas == 1 else self._part(whole, replica, replicas)

    def of(self, layout: str, family: str, mode: str) -> list[Run]:
        """One engine's ranks; `own` is vLLM's own MoE, else one of the family's modes."""
        key = (layout, family, mode)
        if key not in self.done and key not in self.failed:
            try:
                self.done[key] = self._serve(*key)
            except Exception as e:  # told again by every test that asks for this engine
                self.failed[key] = e
        if key in self.failed:
            raise self.failed[key]
        return self.done[key]

    def _serve(self, layout: str, family: str, mode: str) -> list[Run]:
        over = LAYOUTS[layout]
        llm: dict[str, Any] = {"model": str(self.checkpoints.of(family)), **SAME_FOR_ALL, **over.llm}
        if mode != "own":
            llm["quantization"] = "megamoe"
        if mode == "apart":
            llm["additional_config"] = {"megamoe": {"fuse_shared_experts": "off"}}
        damages = [] if mode == "own" else FAMILIES[family].damages(mode, layout)
        shares = [self.checkpoints.prompts[r :: over.replicas] for r in range(over.replicas)]
        steps = [partial(observe, prompts=shares[over.replica_of(rank)], damages=damages) for rank in range(over.ranks)]
        found = self.ranks(over.ranks).run(serve, [(llm, [step]) for step in steps])
        return [Run(results, results.pop("layers")) for (results,) in found]

    def _part(self, whole: dict[str, Tensor], replica: int, replicas: int) -> dict[str, Tensor]:
        """The rows of every `replicas`-th prompt."""
        rows = whole["prompt"].split([len(prompt) - 1 for prompt in self.checkpoints.prompts])
        new = whole["new"].view(*whole["tokens"].shape, -1)[replica::replicas]
        return {
            "prompt": torch.cat(rows[replica::replicas]),
            "new": new.flatten(0, 1),
            "tokens": whole["tokens"][replica::replicas],
        }
