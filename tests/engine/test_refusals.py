"""A call that one rank refuses ends on all ranks at once, with that rank and its reason, through an engine of two."""

import time
from functools import partial
from typing import Any

import pytest
from engine.engines import EAGER, FLOAT32, MEGAMOE, TP2, Prompts

from vllm_megamoe.testing.engines import EngineRanks, model_of

pytestmark = [pytest.mark.engine, pytest.mark.full]

AT_ONCE_S = 20.0
"""Far below the 300 s that a rank waits for a silent one (environment.DEFAULT_TIMEOUT_S); a busy machine is slow."""


def refused(llm: Any, prompts: Prompts) -> tuple[str, float]:
    """What this rank is told when rank 1 brings ids of another type in the middle of a run, and after how long."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    given = [{"prompt_token_ids": p} for p in prompts]
    llm.generate(given, params, use_tqdm=False)
    state = [module.mega_moe for module in model_of(llm).modules() if hasattr(module, "mega_moe")][1]
    if state.seat.rank == 1:
        whole = state._operator
        state._operator = lambda x, ids, weights, mask: whole(x, ids.long(), weights, mask)
    start = time.monotonic()
    try:
        llm.generate(given, params, use_tqdm=False)
    except Exception as error:  # its text is judged by the test
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "answered", time.monotonic() - start


def test_a_refusal_on_one_rank_reaches_the_others_at_once(
    checkpoint: str, prompts: Prompts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ranks of their own: the engine is broken afterwards."""
    ranks = EngineRanks(2, tmp_path_factory.mktemp("refusals"))
    try:
        llm = {"model": checkpoint, **FLOAT32, **MEGAMOE, **TP2, **EAGER, "enable_prefix_caching": False}
        (other,), (own,) = ranks.serve(llm, [partial(refused, prompts=prompts[:4])])
    finally:
        ranks.stop(0)
    assert own[0].startswith("OperatorError: ")
    assert "topk_ids" in own[0]
    assert other[0].startswith("PeerError: ")
    assert "rank 1 rejected its call" in other[0]
    assert "topk_ids" in other[0]
    assert max(own[1], other[1]) < AT_ONCE_S
