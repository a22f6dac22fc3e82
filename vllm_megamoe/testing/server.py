"""`vllm serve` on a free port for as long as a context is open, and a client for OpenAI's API as vLLM serves it.

The client needs the standard library alone. A server's log tells in vLLM's words what it does; `stage` says it in ours,
and falls back to the first of our sentences where a version of vLLM logs other lines.
"""

import json
import os
import shlex
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from vllm_megamoe.testing.process import HarnessError, OwnProcess, free_port

PRINTABLE = list(range(32, 127))
"""Token ids of printable ASCII in the demo's tokenizer. The weights are random, so the answers are noise; kept to
these tokens, the noise does no harm to a terminal."""

_ANSWER_LIMIT_S = 300.0
_START_LIMIT_S = 900.0
_LOOK_EVERY_S = 0.5

_STARTING = "vLLM starts: every process imports PyTorch and vLLM"
_STAGES = (
    ("Starting to load model", "the workers build the model and load its weights"),
    ("Warming up model for the compilation", "vLLM compiles the model with g++ and keeps the result for later runs"),
    ("init engine (profile", "the engine is ready, the HTTP server starts"),
)
"""Text in the log of vLLM 0.32 -> what happens from then on, in the order in which it happens."""

# A proxy that the environment names has no business between us and 127.0.0.1.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to one server about one model.

    Its requests raise HarnessError with the server's answer, or that there was none.
    """

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
            answer: HTTPResponse = _opener.open(request, timeout=_ANSWER_LIMIT_S)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:2000]
            raise HarnessError(f"{path}: the server answered {error.code}: {text}") from error
        except OSError as error:
            raise HarnessError(f"{path}: no answer from {self.url}: {error}; its log tells why") from error
        return answer


@dataclass(frozen=True, slots=True)
class Server:
    """`vllm serve MODEL OPTIONS` on 127.0.0.1, not started yet; the port was free when this was made."""

    model: Path
    options: tuple[str, ...]
    log: Path
    port: int = field(default_factory=free_port)

    @property
    def command(self) -> list[str]:
        return ["vllm", "serve", str(self.model), *self.options, "--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def command_line(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(self.command)

    @contextmanager
    def running(
        self, environment: Mapping[str, str], tell: Callable[[str], None] = lambda stage: None
    ) -> Iterator[Client]:
        """Run the server for as long as the context is open, and give a client for it once it is healthy.

        The server and all its workers are gone when the context closes.

        Args:
            environment: all of the server's environment.
            tell: called twice a second with what the server does, until it is healthy.

        Raises:
            HarnessError: with the log's end when the server ends, or is not healthy in time.
        """
        client = Client(f"http://127.0.0.1:{self.port}", str(self.model))
        with OwnProcess([str(_executable()), *self.command[1:]], self.log, environment) as process:
            _wait_until_healthy(process, client, tell)
            yield client


def has_compiler() -> bool:
    """Whether torch finds a C++ compiler: $CXX, else g++ (torch._inductor.config.cpp.cxx)."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def compiler_environment() -> dict[str, str]:
    """Return the variables that vLLM needs where there is no C++ compiler, {} where there is one.

    vLLM 0.32 lets torch compile parts of itself under --enforce-eager too: log-probabilities, grouped routers,
    embeddings cut over ranks. Without a compiler that ends in InvalidCxxCompiler, unless torch is told not to compile.
    """
    return {} if has_compiler() else {"TORCHDYNAMO_DISABLE": "1"}


def stage(log_text: str) -> str:
    """Return what a server does, by its log: the last of our sentences whose mark is there."""
    reached = [words for mark, words in _STAGES if mark in log_text]
    return reached[-1] if reached else _STARTING


def _wait_until_healthy(process: OwnProcess, client: Client, tell: Callable[[str], None]) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while not client.is_healthy():
        if process.exit_code() is not None:
            raise process.failed("the server ended before it was healthy")
        if time.monotonic() > end:
            raise process.failed(f"the server was not healthy after {_START_LIMIT_S:.0f} s")
        tell(stage(process.log.read_text(encoding="utf-8", errors="replace")))
        time.sleep(_LOOK_EVERY_S)


def _executable() -> Path:
    path = Path(sys.executable).with_name("vllm")
    if not path.exists():
        raise HarnessError(f"there is no {path}; start this in an environment with vLLM, which `make .venv` sets up")
    return path
