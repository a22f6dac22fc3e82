"""Engines that the tests of this folder share: each job once per session, in rank processes that are there already."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.steps import greedy

from vllm_megamoe.testing.engines import TENSOR_PARALLEL, EngineRanks, Step

MEGAMOE = {"quantization": "megamoe"}
EAGER = {"enforce_eager": True}
TP2 = TENSOR_PARALLEL
FLOAT32 = {"dtype": "float32"}

Prompts = list[list[int]]


@dataclass
class Engines:
    """Runs engines and remembers what came out."""

    ranks: Callable[[int], EngineRanks]
    done: dict[bytes, list[list[Any]]] = field(default_factory=dict)

    def run(self, llm: dict[str, Any], steps: list[Step]) -> list[list[Any]]:
        """Results of the steps, by rank and in order, from one engine."""
        key = pickle.dumps((sorted(llm.items()), steps))
        if key not in self.done:
            self.done[key] = self.ranks(llm.get("tensor_parallel_size", 1)).serve(llm, steps)
        return self.done[key]

    def float32_baseline(self, checkpoint: str, prompts: Prompts) -> list[Any]:
        """vLLM's own MoE in float32 on one rank: tokens of all prompts in one batch, then one by one."""
        return self.run({"model": checkpoint, **FLOAT32, **EAGER}, greedy_steps(prompts))[0]


def greedy_steps(prompts: Prompts) -> list[Step]:
    """Eight tokens after each prompt in one batch, then after each of them alone."""
    step = partial(greedy, prompts=prompts, max_tokens=8)
    return [step, partial(step, one_by_one=True)]
