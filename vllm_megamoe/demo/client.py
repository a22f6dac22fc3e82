"""The demo's HTTP client: OpenAI's API as vLLM serves it, over the standard library."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

from vllm_megamoe.demo.failure import DemoError

_TIMEOUT_S = 300.0
PRINTABLE = list(range(32, 127))
"""Token ids of printable ASCII in the demo's tokenizer. The weights are random, so the answers are noise; kept to
these tokens, the noise does no harm to a terminal."""

# A proxy that the environment names has no business between us and 127.0.0.1.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to one server about one model."""

    url: str
    model: str

    def is_healthy(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            with _opener.open(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):  # not listening yet, or listening and not answering yet
            return False

    def chat(self, message: str, max_tokens: int) -> str:
        """Return the answer to one message, greedily chosen."""
        answer = self._json("/v1/chat/completions", self._chat_body(message, max_tokens))
        return str(answer["choices"][0]["message"]["content"])

    def chat_stream(self, message: str, max_tokens: int) -> Iterator[str]:
        """Yield the same answer piece by piece, as the server sends it."""
        body = self._chat_body(message, max_tokens) | {"stream": True}
        with self._open("/v1/chat/completions", body) as lines:
            for line in lines:
                data = line.decode().removeprefix("data:").strip()
                if data and data != "[DONE]":
                    yield json.loads(data)["choices"][0]["delta"].get("content") or ""

    def greedy_tokens(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Return the ids of the tokens that the model finds likeliest after `prompt`, one by one."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = self._json("/v1/completions", body | {"return_token_ids": True})
        return list(answer["choices"][0]["token_ids"])

    def log_probabilities(self, tokens: list[int], top: int) -> list[dict[int, float]]:
        """Return, for each token but the first, the log-probabilities that the tokens before it lead to.

        Each holds the `top` likeliest tokens and the token that does follow: token id -> log-probability.
        """
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": top}
        answer = self._json("/v1/completions", body)
        places = answer["choices"][0]["prompt_logprobs"][1:]
        return [{int(token): entry["logprob"] for token, entry in place.items()} for place in places]

    def _chat_body(self, message: str, max_tokens: int) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": message}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "allowed_token_ids": PRINTABLE,
        }

    def _json(self, path: str, body: dict[str, Any]) -> Any:
        with self._open(path, body) as answer:
            return json.load(answer)

    def _open(self, path: str, body: dict[str, Any]) -> HTTPResponse:
        data = json.dumps({"model": self.model, **body}).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        try:
            answer: HTTPResponse = _opener.open(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:2000]
            raise DemoError(f"{path}: the server answered {error.code}: {text}") from error
        except OSError as error:
            raise DemoError(f"{path}: no answer from {self.url}: {error}; its log tells why") from error
        return answer
