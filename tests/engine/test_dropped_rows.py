"""A receiver without room, in running engines: what is lost, whose it was, and both endings that are reported of A3.

All rows go to the experts 0 and 1 of rank 0, because the router's weights are 0 and the first of equal ones win. A step
of n rows sends n to each of them: with room for R rows expert 1 loses the last 2n - R rows, whoever sent them.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.ends import LIMIT_S, healthy
from engine.engines import EAGER, MEGAMOE, TP2, Engines
from engine.reloading import tensors_of
from engine.traffic import stream
from safetensors.torch import save_file

pytestmark = [pytest.mark.engine, pytest.mark.full]

ROOM, LAYERS = 100, 2
LENGTHS = (40, 24, 30)
OPTIONS = {"megamoe": {"max_recv_token_num": ROOM, "allow_token_drop": True}}


@pytest.fixture(scope="module")
def skewed(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shared checkpoint with routers of zeros."""
    folder = tmp_path_factory.mktemp("skewed") / "model"
    shutil.copytree(checkpoint, folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    tensors = {
        n: torch.zeros_like(t) if n.endswith("mlp.gate.weight") else t for n, t in tensors_of(checkpoint).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def lost(llm: Any, lengths: tuple[int, ...]) -> tuple[list[str], dict[str, int], int]:
    """All prompts in one step: their requests in order, what each has lost on this rank, and what the counters say."""
    from vllm import SamplingParams

    from vllm_megamoe.lanes.dropped_rows import dropped_by_request
    from vllm_megamoe.testing.engines import model_of

    states = [module.mega_moe for module in model_of(llm).modules() if hasattr(module, "mega_moe")]
    before = sum(int(state.load.dropped) for state in states)
    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    prompts = [{"prompt_token_ids": [5 + n] * length} for n, length in enumerate(lengths)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    (told,) = llm.collective_rpc(dropped_by_request)
    return [output.request_id for output in outputs], told, sum(int(s.load.dropped) for s in states) - before


def test_lost_rows_are_told_by_request(skewed: str, engines: Engines) -> None:
    """94 rows, 188 pairs for 100 places: expert 1 has room for 6 rows, the first ones of the first request."""
    llm = {"model": skewed, **MEGAMOE, **TP2, **EAGER, "additional_config": OPTIONS, "enable_prefix_caching": False}
    ranks = engines.run(llm, [partial(lost, lengths=LENGTHS)])
    requests, n = ranks[0][0][0], sum(LENGTHS)
    found = [
        sum(pairs for ((_, told, _),) in ranks for key, pairs in told.items() if key.startswith(r)) for r in requests
    ]
    first = LENGTHS[0] - (ROOM - n)
    assert found == [LAYERS * first, LAYERS * LENGTHS[1], LAYERS * LENGTHS[2]]
    assert sum(counted for ((_, _, counted),) in ranks) == sum(found) == LAYERS * (2 * n - ROOM)


SIMULATED = ("--quantization", "megamoe", "--tensor-parallel-size", "2", "--enable-expert-parallel", "--enforce-eager")
LIMITS = ("--max-model-len", "256", "--no-enable-prefix-caching")
SMALL_ROOM = '--additional-config={"megamoe": {"max_recv_token_num": 100, "allow_token_drop": true}}'


@pytest.mark.parametrize("ending", ["in silence", "507057"])
def test_both_endings_of_a_simulated_a3(ending: str, skewed: str, tmp_path: Path) -> None:
    options = (
        *SIMULATED,
        *LIMITS,
        '--additional-config={"megamoe": {"max_recv_token_num": 100, "allow_token_drop": true}}',
    )
    variables = {"VLLM_MEGAMOE_SIMULATE": "a3@9.2"}
    if ending == "507057":
        variables["VLLM_MEGAMOE_DEVIATIONS"] = "overflow_ends"
    with healthy(skewed, options, tmp_path / "log.txt", **variables) as life:
        answer = stream(life.client, [5] * 94, 3)
        if ending == "in silence":
            assert len(answer.tokens) == 3
            assert not answer.error
            life.wait_for(lambda: "megamoe dropped rows: " in life.text(), "line about dropped rows")
            assert "of request cmpl-" in life.text()
        else:
            assert answer.error
            assert life.gone_after() < LIMIT_S
            assert "error code 507057" in life.text()
