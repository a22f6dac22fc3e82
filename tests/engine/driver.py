"""One engine in a process of its own: reads a job, runs its steps, writes what came out.

    python driver.py JOB.json RESULT.json

A job holds `llm` (arguments of vllm.LLM) and `steps`; each step names a function below and its arguments. Data-parallel
jobs run this file once per rank, with vLLM's environment variables for offline data parallelism.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

Rows = list[dict[str, float]]


def greedy(llm: LLM, prompts: list[list[int]], max_tokens: int, one_by_one: bool = False) -> list[dict[str, Any]]:
    """Generate greedily; tokens and the five best log-probabilities of each position."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=5, ignore_eos=True, detokenize=False)
    batches = [[prompt] for prompt in prompts] if one_by_one else [prompts]
    results = []
    for batch in batches:
        for output in llm.generate([{"prompt_token_ids": p} for p in batch], params, use_tqdm=False):
            completion = output.outputs[0]
            tops = [{str(i): entry.logprob for i, entry in row.items()} for row in completion.logprobs]
            results.append({"tokens": list(completion.token_ids), "top": tops})
    return results


def teacher(llm: LLM, sequences: list[list[int]], starts: list[int], best: int = 20) -> list[Rows]:
    """The best log-probabilities that the model gives at each position from `start` on, fed with fixed tokens."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=best, detokenize=False)
    results = []
    outputs = llm.generate([{"prompt_token_ids": s} for s in sequences], params, use_tqdm=False)
    for output, start in zip(outputs, starts, strict=True):
        rows = output.prompt_logprobs[start:]
        results.append([{str(i): entry.logprob for i, entry in row.items()} for row in rows])
    return results


def own_teacher(llm: LLM, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Generate greedily, then feed the engine its own tokens: the sequences, and the five best at each position."""
    tokens = [result["tokens"] for result in greedy(llm, prompts, max_tokens)]
    sequences = [prompt + more for prompt, more in zip(prompts, tokens, strict=True)]
    return {"sequences": sequences, "top": teacher(llm, sequences, [len(p) for p in prompts], best=5)}


def layers(llm: LLM) -> list[list[dict[str, Any]]]:
    """What the MoE layers of each worker hold."""
    return llm.collective_rpc(_layers_of_worker)


def sabotage(llm: LLM, kind: str) -> None:
    """Break the MoE layers of every worker on purpose; `none` fixes them."""
    llm.collective_rpc(_sabotage_worker, args=(kind,))


def _layers_of_worker(worker: Any) -> list[dict[str, Any]]:
    from vllm_megamoe.experts.convert import operand_bytes

    found = []
    for name, module in worker.model_runner.get_model().named_modules():
        state = getattr(module, "mega_moe", None)
        if state is not None:
            found.append(
                {
                    "name": name,
                    "use_case": str(state.plan.use_case),
                    "calls": state.calls,
                    "steps": state.steps,
                    "bytes": operand_bytes(state.operands),
                    "plan_bytes": state.plan.weight_bytes,
                    "chunk": state.plan.capacity.chunk,
                    "counts": state.counts.tolist(),
                    "rank": state.seat.rank,
                    "buffer": id(module.mega_moe_buffer),
                    "num_max_tokens_per_rank": module.mega_moe_buffer.num_max_tokens_per_rank,
                    "weights_left": module.w13_weight.numel() + module.w2_weight.numel(),
                }
            )
    return found


def _sabotage_worker(worker: Any, kind: str) -> None:
    from vllm_megamoe.lanes.moe_method import CompleteRows
    from vllm_megamoe.layer.state import LayerState

    if not hasattr(LayerState, "whole_run"):
        LayerState.whole_run = LayerState.run
    run = LayerState.whole_run
    LayerState.run = (lambda *a: 0.9 * run(*a)) if kind == "scaled" else run
    CompleteRows.output_is_reduced = lambda self: kind != "reduced twice"
    for module in worker.model_runner.get_model().modules():
        state = getattr(module, "mega_moe", None)
        if state is not None and (kind == "swapped") != getattr(module, "swapped", False):
            # The operands of the first two local experts change places; again, and they are back.
            for column in (state.operands.l1, state.operands.l2):
                column[0], column[1] = column[1], column[0]
            module.swapped = kind == "swapped"


STEPS = {f.__name__: f for f in (greedy, teacher, own_teacher, layers, sabotage)}


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    llm = LLM(skip_tokenizer_init=True, max_model_len=256, seed=0, **job["llm"])
    try:
        results = [STEPS[step.pop("do")](llm, **step) for step in job["steps"]]
        Path(result_file).write_text(json.dumps(results))
        # An idle data-parallel rank must go on to take part in the others' steps until all are done.
        wait_for([Path(peer) for peer in job["results"]])
    finally:
        # Offline data-parallel ranks wait for each other at exit unless the engine is shut down first.
        llm.llm_engine.engine_core.shutdown()


def wait_for(files: list[Path]) -> None:
    """Return when all files are there; a rank that failed never writes its own, so the wait has an end."""
    end = time.monotonic() + 300
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise TimeoutError(f"no result of another rank after 300 s: {[str(f) for f in files if not f.exists()]}")
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
