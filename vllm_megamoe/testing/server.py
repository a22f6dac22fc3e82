"""The demo's HTTP client: OpenAI's API as vLLM serves it, over the standard library.

A line that shows how long something takes, and what it last said.

Starts `vllm serve` and waits until it is healthy.
"""

import json
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from vllm_megamoe.testing.process import DemoError, OwnProcess, last_message

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


_PLAIN_INTERVAL_S = 15.0


@contextmanager
def waiting(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Give a function that shows the seconds so far and a detail: one line redrawn on a terminal, else one at times."""
    start = time.monotonic()
    last_plain = start

    def show(detail: str) -> None:
        nonlocal last_plain
        seconds = time.monotonic() - start
        if console.is_terminal:
            status.update(f"{what} [bold]{seconds:.0f} s[/]  [dim]{escape(detail)}[/]")
        elif time.monotonic() - last_plain >= _PLAIN_INTERVAL_S:
            last_plain = time.monotonic()
            console.print(f"    {seconds:.0f} s  {escape(detail)}", highlight=False)

    with console.status(what) as status:
        yield show
    console.print(f"    done in {time.monotonic() - start:.0f} s", highlight=False)


_START_LIMIT_S = 900.0


@contextmanager
def serving(
    console: Console, model: Path, options: list[str], log: Path, environment: Mapping[str, str]
) -> Iterator[Client]:
    """Run `vllm serve MODEL OPTIONS` on a free port for as long as the context is open, and give a client for it.

    The server and all its workers are gone when the context closes. Raises DemoError with the log's end when the
    server ends, or is not healthy in time.
    """
    command = ["vllm", "serve", str(model), *options, "--host", "127.0.0.1", "--port", str(_free_port())]
    console.print(f"    {shlex.join(command)}", style="bold", highlight=False, soft_wrap=True)
    console.print(f"    its log: {log}", highlight=False, soft_wrap=True)
    client = Client(f"http://127.0.0.1:{command[-1]}", str(model))
    with OwnProcess([str(_executable()), *command[1:]], log, environment) as server:
        _wait(console, server, client)
        yield client
        console.print("    stopping the server", highlight=False)


def _wait(console: Console, server: OwnProcess, client: Client) -> None:
    end = time.monotonic() + _START_LIMIT_S
    with waiting(console, "    waiting for the server") as show:
        while not client.is_healthy():
            if server.exit_code() is not None:
                raise server.failed("the server ended before it was healthy")
            if time.monotonic() > end:
                raise server.failed(f"the server was not healthy after {_START_LIMIT_S:.0f} s")
            show(last_message(server.log))
            time.sleep(0.5)


def _executable() -> Path:
    path = Path(sys.executable).with_name("vllm")
    if not path.exists():
        raise DemoError(f"there is no {path}; run the demo with `make demo`, which sets up an environment with vLLM")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
