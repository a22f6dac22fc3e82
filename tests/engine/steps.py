"""What the engine tests do on an engine, on every rank of it: functions that are sent to the rank processes."""

from dataclasses import dataclass
from typing import Any

from families import damage
from torch import Tensor

from vllm_megamoe.testing.engines import model_of

Rows = list[dict[int, float]]
"""Per position, token -> log-probability."""


def greedy(llm: Any, prompts: list[list[int]], max_tokens: int, one_by_one: bool = False) -> list[list[int]]:
    """Tokens after each prompt, greedily; all prompts in one batch, or each of them alone."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    batches = [[prompt] for prompt in prompts] if one_by_one else [prompts]
    return [
        list(output.outputs[0].token_ids)
        for batch in batches
        for output in llm.generate([{"prompt_token_ids": p} for p in batch], params, use_tqdm=False)
    ]


def teacher(llm: Any, sequences: list[list[int]], starts: list[int], best: int = 20) -> list[Rows]:
    """The best log-probabilities that the model gives at each position from `start` on, fed with fixed tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=best, ignore_eos=True, detokenize=False)
    several = [params.clone() for _ in sequences]
    if llm.llm_engine.vllm_config.parallel_config.data_parallel_size > 1:
        # A rank's requests reach its engine one by one. vLLM 0.32 looks after the first step, then after each 32nd,
        # whether any rank has one, and stops all ranks where none has; a request that comes later waits for ever.
        several[0].max_tokens = 64
    outputs = llm.generate([{"prompt_token_ids": s} for s in sequences], several, use_tqdm=False)
    return [
        [{token: entry.logprob for token, entry in row.items()} for row in output.prompt_logprobs[start:]]
        for output, start in zip(outputs, starts, strict=True)
    ]


def own_teacher(llm: Any, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Generate greedily, then feed the engine its own tokens: the sequences, and the five best at each position."""
    tokens = greedy(llm, prompts, max_tokens)
    sequences = [prompt + more for prompt, more in zip(prompts, tokens, strict=True)]
    return {"sequences": sequences, "top": teacher(llm, sequences, [len(p) for p in prompts], best=5)}


def damaged(llm: Any, kind: str, step: Any) -> Any:
    """What a step gives while this rank's MoE layers are broken on purpose."""
    fix = damage.apply(model_of(llm), kind)
    try:
        return step(llm)
    finally:
        fix()


@dataclass(frozen=True)
class Seen:
    """What vLLM handed to one MoE layer in one step, and the rows that it gave back."""

    x: Tensor
    ids: Tensor
    weights: Tensor
    y: Tensor


def seen(llm: Any, prompts: list[list[int]]) -> list[Seen]:
    """What each MoE layer of this rank saw and gave, for all prompts in one step."""
    from vllm import SamplingParams
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    found: list[Seen] = []
    fixes = [
        damage.watch(runner.routed_experts.quant_method, "apply", lambda y, **given: found.append(_seen(y, **given)))
        for runner in model_of(llm).modules()
        if isinstance(runner, MoERunner)
    ]
    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    for fix in fixes:
        fix()
    return found


def _seen(y: Tensor, *, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, **_: Any) -> Seen:
    return Seen(x.clone(), topk_ids.clone(), topk_weights.clone(), y.clone())


def layers(llm: Any) -> list[dict[str, Any]]:
    """What the MoE layers of this rank hold."""

    found = []
    for name, module in model_of(llm).named_modules():
        state = getattr(module, "mega_moe", None)
        if state is not None:
            found.append(
                {
                    "name": name,
                    "use_case": str(state.plan.use_case),
                    "calls": state.calls,
                    "steps": state.steps,
                    "bytes": state.operands.nbytes,
                    "plan_bytes": state.plan.weight_bytes,
                    "chunk": state.plan.capacity.chunk,
                    "counts": state.counts.tolist(),
                    "rank": state.seat.rank,
                    "buffer": id(module.mega_moe_buffer),
                    "num_max_tokens_per_rank": module.mega_moe_buffer.num_max_tokens_per_rank,
                    "weights_left": sum(parameter.numel() for parameter in module.parameters()),
                }
            )
    return found
