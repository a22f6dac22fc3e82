"""Engines of one process, one after the other: reads a job file, writes the log-probabilities of each engine.

    python -m families.driver JOB.json RESULT.pt

A job has `prompts` and `engines`; an engine has a name, vLLM's arguments, the architecture, the damages to try and a
free port. With the environment of a torchrun-like launcher (RANK, WORLD_SIZE, MASTER_ADDR) and vLLM's executor
`external_launcher` the process is one rank of several, and every rank runs the same job.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from families import damage
from families.models import VOCABULARY
from torch import Tensor
from vllm import LLM, ModelRegistry, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

NEW_TOKENS = 4


def log_probabilities(llm: LLM, prompts: list[list[int]]) -> dict[str, Tensor]:
    """What the model gives for every token of the vocabulary, after each position of a prompt and after new tokens."""
    whole = SamplingParams(
        temperature=0,
        max_tokens=NEW_TOKENS,
        ignore_eos=True,
        prompt_logprobs=VOCABULARY,
        logprobs=VOCABULARY,
        detokenize=False,
    )
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], whole, use_tqdm=False)
    prompt_rows = [row for output in outputs for row in output.prompt_logprobs[1:]]
    new_rows = [row for output in outputs for row in output.outputs[0].logprobs]
    return {
        "prompt": _table(prompt_rows),
        "new": _table(new_rows),
        "tokens": torch.tensor([list(output.outputs[0].token_ids) for output in outputs]),
    }


def _table(rows: list[Any]) -> Tensor:
    return torch.tensor([[row[token].logprob for token in range(VOCABULARY)] for row in rows])


def serve(engine: dict[str, Any], prompts: list[list[int]]) -> dict[str, Any]:
    """Results of one engine by damage, and what its MoE layers hold."""
    # vLLM would load the class in a process of its own to look at it, which costs seconds for each family.
    architecture = engine["architecture"]
    ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())
    llm = LLM(skip_tokenizer_init=True, max_logprobs=VOCABULARY, enable_prefix_caching=False, **engine["llm"])
    model = llm.llm_engine.model_executor.driver_worker.worker.get_model()
    results: dict[str, Any] = {}
    for kind in ["none", *engine["damages"]]:
        fix = damage.apply(model, kind)
        results[kind] = log_probabilities(llm, prompts)
        fix()
    states = [module.mega_moe for module in model.modules() if hasattr(module, "mega_moe")]
    results["layers"] = [{"shared": state.plan.shared.mode, "calls": state.calls} for state in states]
    llm.llm_engine.engine_core.shutdown()
    return results


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    found = {}
    for engine in job["engines"]:
        # The ranks of each engine meet at a store of their own: an old one still names closed connections.
        os.environ["MASTER_PORT"] = engine["port"]
        found[engine["name"]] = serve(engine, job["prompts"])
        cleanup_dist_env_and_memory()
    torch.save(found, result_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
