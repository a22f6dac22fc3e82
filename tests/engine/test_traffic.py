"""A server under heavy traffic: each of two hundred requests at once gets the answer that it gets alone.

Float32, where tokens are equal however rows are batched: the two best candidates are never closer than what the order
of sums moves (see test_float32). The oracle is vLLM's own MoE on one rank, one prompt after the other. Prompts share
prefixes (cache), are longer than a step (chunked prefill), and every third client hangs up in the middle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from engine import traffic
from engine.engines import EAGER, FLOAT32, Engines
from engine.traffic import INF_TOKEN, NAN_TOKEN, Answer, make_asks, make_prompts, poison, send, stream

from vllm_megamoe.testing.engines import engine_environment
from vllm_megamoe.testing.server import Client, Server

pytestmark = [pytest.mark.engine, pytest.mark.full]

LIMITS = ("--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--max-num-batched-tokens", "128")
OURS = ("--quantization", "megamoe", "--enable-expert-parallel")
RANKS = {"TP=2": ("--tensor-parallel-size", "2"), "DP=2": ("--data-parallel-size", "2")}


@dataclass(frozen=True)
class Run:
    """What came of one server.

    Attributes:
        client: talks to it; it runs on.
        answers: to `make_asks`.
        odd: to requests whose hidden states are NaN and infinite, sent among the others.
    """

    client: Client
    answers: list[Answer]
    odd: list[Answer]


@pytest.fixture(scope="module")
def alone(engines: Engines, checkpoint: str) -> list[list[int]]:
    llm = {"model": checkpoint, **FLOAT32, **EAGER, "max_model_len": 512}
    return engines.run(llm, [partial(traffic.alone, prompts=make_prompts(), tokens=24)])[0][0]


@pytest.fixture(scope="module", params=RANKS)
def run(request: pytest.FixtureRequest, checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    tmp = tmp_path_factory.mktemp("traffic")
    model = poison(checkpoint, tmp / "poisoned")
    server = Server(Path(model), (*OURS, *LIMITS, *RANKS[request.param]), tmp / "log.txt")
    with server.running(engine_environment()) as client:
        prompts = make_prompts()
        odd = [[5, NAN_TOKEN, 6] * 9, [INF_TOKEN, 7, 8], [9] * 150 + [NAN_TOKEN], [10, INF_TOKEN]]
        asks = make_asks(len(prompts))
        mixed = [(prompts[ask.prompt], ask.tokens, ask.cancel_after) for ask in asks]
        for place, prompt in zip((0, 50, 100, 150), odd, strict=True):
            mixed.insert(place, (prompt, 8, None))
        found = send(client, mixed)
        at = [0, 50, 100, 150]
        yield Run(client, [a for n, a in enumerate(found) if n not in at], [found[n] for n in at])


def test_each_answer_equals_the_one_it_gets_alone(run: Run, alone: list[list[int]]) -> None:
    asks = make_asks(len(alone))
    assert len(asks) == len(run.answers) == 200
    for ask, answer in zip(asks, run.answers, strict=True):
        assert answer.error == ""
        asked = ask.tokens if ask.cancel_after is None else len(answer.tokens)
        assert answer.tokens == alone[ask.prompt][:asked]


def test_a_request_of_nan_or_infinity_ends(run: Run) -> None:
    """Its own answer means nothing; what counts is that it comes, or an error does."""
    for answer in run.odd:
        assert len(answer.tokens) == 8 or answer.error


def test_a_request_beyond_the_context_is_rejected_and_the_next_one_is_answered(
    run: Run, alone: list[list[int]]
) -> None:
    too_long = stream(run.client, [5] * 600, 8)
    assert too_long.error.startswith("400"), too_long
    assert "512" in too_long.error
    assert stream(run.client, make_prompts()[3], 24).tokens == alone[3]
