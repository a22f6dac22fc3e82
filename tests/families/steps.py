"""What the tests of this folder do on an engine, on every rank of it: a function that is sent to the rank processes."""

from typing import Any

import torch
from families import damage
from families.models import VOCABULARY
from torch import Tensor

from vllm_megamoe.testing.engines import model_of

NEW_TOKENS = 4


def observe(llm: Any, prompts: list[list[int]], damages: list[str]) -> dict[str, Any]:
    """Log-probabilities of the whole model (`none`) and under each damage, and what its MoE layers did (`layers`)."""
    model = model_of(llm)
    results: dict[str, Any] = {}
    for kind in ["none", *damages]:
        fix = damage.apply(model, kind)
        results[kind] = log_probabilities(llm, prompts)
        fix()
    states = [module.mega_moe for module in model.modules() if hasattr(module, "mega_moe")]
    results["layers"] = [{"shared": state.plan.shared.mode, "calls": state.calls} for state in states]
    return results


def log_probabilities(llm: Any, prompts: list[list[int]]) -> dict[str, Tensor]:
    """What the model gives for every token of the vocabulary, after each position of a prompt and after new tokens."""
    from vllm import SamplingParams

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
