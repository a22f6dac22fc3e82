"""Two hundred requests at once, streamed, some of them cancelled: what a server's clients send and get."""

import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.reloading import tensors_of
from safetensors.torch import save_file

from vllm_megamoe.testing.server import Client

REQUESTS = 200
NAN_TOKEN, INF_TOKEN = 258, 257
"""Tokens whose embeddings are not finite in the checkpoint of `poison`; a template's marks, in no prompt here."""
ALLOWED = list(range(4, 250))
"""What an answer may hold."""


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        prompt: index of its prompt.
        tokens: that it asks for.
        cancel_after: tokens after which the client hangs up, None for never.
    """

    prompt: int
    tokens: int
    cancel_after: int | None


@dataclass
class Answer:
    """What came back: token ids, and the HTTP status or error that ended it."""

    tokens: list[int] = field(default_factory=list)
    error: str = ""


def poison(source: str, folder: Path) -> str:
    """A copy of a checkpoint in which two tokens' embeddings are NaN and infinity in one place each."""
    folder.mkdir()
    for file in Path(source).iterdir():
        if "safetensors" not in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    tensors = tensors_of(source)
    embeddings = tensors["model.embed_tokens.weight"].clone()
    embeddings[NAN_TOKEN, 700], embeddings[INF_TOKEN, 701] = float("nan"), float("inf")
    tensors["model.embed_tokens.weight"] = embeddings
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def alone(llm: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """So many tokens after each prompt, one prompt after the other, greedily."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, allowed_token_ids=ALLOWED
    )
    outputs = [llm.generate([{"prompt_token_ids": p}], params, use_tqdm=False)[0] for p in prompts]
    return [list(output.outputs[0].token_ids) for output in outputs]


def make_prompts() -> list[list[int]]:
    """Forty prompts of 1 to 200 tokens; half of them begin with the same 64, for the cache of prefixes."""
    rng = random.Random(21)
    common = [rng.randrange(4, 250) for _ in range(64)]
    own = [[rng.randrange(4, 250) for _ in range(rng.choice((1, 3, 17, 60, 136)))] for _ in range(40)]
    return [common + tail if n % 2 else tail for n, tail in enumerate(own)]


def make_asks(prompts: int) -> list[Ask]:
    """Mixed lengths in a mixed order; every third request is hung up on."""
    rng = random.Random(22)
    asks = []
    for n in range(REQUESTS):
        tokens = rng.randint(1, 24)
        asks.append(Ask(n % prompts, tokens, rng.randrange(tokens) if n % 3 == 0 else None))
    rng.shuffle(asks)
    return asks


def stream(client: Client, prompt: list[int], tokens: int, cancel_after: int | None = None) -> Answer:
    """Ask for tokens one by one, greedily; hang up after some of them."""
    host = client.url.removeprefix("http://")
    body = {"model": client.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True, "allowed_token_ids": ALLOWED}
    answer, connection = Answer(), http.client.HTTPConnection(host, timeout=300)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            answer.error = f"{reply.status}: {reply.read().decode(errors='replace')[:500]}"
            return answer
        for line in reply:
            if cancel_after is not None and len(answer.tokens) >= cancel_after:
                return answer
            data = line.decode().removeprefix("data:").strip()
            if data == "[DONE]":
                return answer
            if data:
                piece = json.loads(data)
                if "error" in piece:
                    answer.error = str(piece["error"])
                    return answer
                answer.tokens += piece["choices"][0].get("token_ids") or []
        answer.error = "the stream ended without [DONE]"
    except OSError as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return answer


def send(client: Client, requests: list[tuple[list[int], int, int | None]]) -> list[Answer]:
    """All requests at once: prompt, tokens, and after how many the client hangs up."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: stream(client, *request), requests))
