"""The demo's steps, in the order in which they are told."""

import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from vllm_megamoe.demo import report
from vllm_megamoe.demo.baseline import Cache, make_baseline, read_baseline
from vllm_megamoe.demo.comparison import Difference, compare
from vllm_megamoe.environment import LOAD_FILE
from vllm_megamoe.testing.process import HarnessError, OwnProcess
from vllm_megamoe.testing.server import Client, Server, compiler_environment, has_compiler

OPERATOR_OPTIONS = ["--quantization", "megamoe", "--tensor-parallel-size", "2", "--enable-expert-parallel"]
QUESTION = "What does a mixture of experts do?"
ANSWER_TOKENS = 48
LOAD_INTERVAL_S = 1.0

LIMIT = 0.06
"""Largest difference of log-probabilities that bf16 explains, for logits of standard deviation 1 (checkpoint.py).

The logits themselves are rounded to bf16 on both sides: up to 2**-6 each for a logit between 4 and 8. What leads to
them is rounded some ten times on each side, each time by 2**-9 / sqrt(3) of its size, at random: together
2**-9 * sqrt(20 / 3) = 0.005 of a logit's deviation, 4.5 times that at the worst of some thousand values. In all
2 * 2**-6 + 4.5 * 0.005 = 0.054. An output of the MoE that is wrong by a tenth gives 0.2 (tests/demo/test_limit.py).
"""

_STEPS = 6

# Seconds on two quiet cores: an estimate for people who wait, no limit.
_CHECKPOINT_S = 10
_BASELINE_S = 40
_SERVER_S = 60
_QUESTIONS_S = 15


@dataclass(slots=True)
class Story:
    """One run of the demo; `options` go to `vllm serve` after our own."""

    console: Console
    folder: Path
    options: list[str]
    keep: bool
    _step: int = 0

    def tell(self) -> None:
        """Run all steps. Raises HarnessError when one fails or the comparison is beyond its limit."""
        start = time.monotonic()
        cache = Cache(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._estimate(cache)
        self._make_checkpoint(cache)
        self._make_baseline(cache)
        self._say("Serve it through the fused operator, by two workers that each hold half of the experts")
        server = self._server(cache, "server", [*OPERATOR_OPTIONS, *self.options])
        load = server.log.with_suffix(".load.json")
        load.unlink(missing_ok=True)
        environment = self._environment(cache) | {LOAD_FILE.name: str(load)}
        with ExitStack() as stack:
            with report.waiting(self.console, "waiting for the server", _SERVER_S) as show:
                client = stack.enter_context(server.running(environment, show))
            self._ask(client)
            found = self._compare(client, cache)
            self._say("Expert load: tokens that each expert got for these questions")
            report.show_load(self.console, report.settled_load(load, LOAD_INTERVAL_S))
            if self.keep:
                self._wait_for_interrupt(client)
            self._print("    stopping the server")
        self._print("    stopped; no process is left")
        self._judge(found)
        self._print(f"Done in {time.monotonic() - start:.0f} s. A second run keeps what is in {self.folder}.")

    def _estimate(self, cache: Cache) -> None:
        """Say how long it takes, before anything is started."""
        first = [(_CHECKPOINT_S, cache.checkpoint), (_BASELINE_S, cache.baseline)]
        seconds = _SERVER_S + _QUESTIONS_S + sum(cost for cost, kept in first if not kept.exists())
        self._print(f"This takes some {seconds} s on two cores that have nothing else to do.")

    def _make_checkpoint(self, cache: Cache) -> None:
        self._say("Make a small checkpoint: Qwen3-MoE, random weights, 8 experts of 1024 x 1024, top-2, 2 layers")
        if cache.checkpoint.exists():
            self._print(f"    kept from before: {cache.checkpoint}")
            return
        command = [sys.executable, "-m", "vllm_megamoe.demo.checkpoint", str(cache.checkpoint)]
        with (
            OwnProcess(command, cache.log("checkpoint"), {**os.environ, "HF_HUB_OFFLINE": "1"}) as process,
            report.waiting(self.console, "making it", _CHECKPOINT_S) as show,
        ):
            while process.exit_code() is None:
                show("PyTorch and transformers are imported, weights are drawn and written")
                time.sleep(0.2)
            if process.exit_code() != 0:
                raise process.failed("the checkpoint could not be written")

    def _make_baseline(self, cache: Cache) -> None:
        self._say("Record what vLLM's own MoE makes of it, for comparison")
        if cache.baseline.exists():
            self._print(f"    kept from before: {cache.baseline}")
            return
        server = self._server(cache, "baseline", [])
        with report.waiting(self.console, "waiting for the server and its answers", _BASELINE_S) as show:
            make_baseline(cache, server, self._environment(cache), show)

    def _server(self, cache: Cache, log: str, options: list[str]) -> Server:
        """A server of the checkpoint, its command shown."""
        server = Server(cache.checkpoint, (*options, *self._eager()), cache.log(log))
        self.console.print(f"    {server.command_line}", style="bold", highlight=False, soft_wrap=True)
        self._print(f"    its log: {server.log}")
        return server

    def _ask(self, client: Client) -> None:
        self._say("Ask it (the weights are random, so the answers are noise, here kept to printable characters)")
        self._print(f"    question: {QUESTION}")
        answer = client.chat(QUESTION, ANSWER_TOKENS)
        self.console.print(f"    answer:   {answer}", markup=False, highlight=False, soft_wrap=True)
        self.console.print("    streamed: ", end="", highlight=False)
        pieces = []
        for piece in client.chat_stream(QUESTION, ANSWER_TOKENS):
            pieces.append(piece)
            self.console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
        self.console.print()
        if len(answer) != ANSWER_TOKENS or len("".join(pieces)) != ANSWER_TOKENS:
            raise HarnessError(f"an answer has not the {ANSWER_TOKENS} characters that were asked for; see above")

    def _compare(self, client: Client, cache: Cache) -> Difference:
        self._say("Compare it with the baseline, on the baseline's tokens")
        found = compare(client, read_baseline(cache.baseline))
        report.show_difference(self.console, found, self._limit())
        return found

    def _judge(self, found: Difference) -> None:
        limit = self._limit()
        if limit is not None and found.largest > limit:
            raise HarnessError(
                f"log-probabilities differ by {found.largest:.4f} from vLLM's own MoE, bf16 rounding explains "
                f"{limit}; the model's output is wrong. Logs and checkpoint: {self.folder}"
            )

    def _limit(self) -> float | None:
        """The limit holds for the unquantised model; other options may change what is computed."""
        return None if self.options else LIMIT

    def _wait_for_interrupt(self, client: Client) -> None:
        self.console.print(f"    the server stays at {client.url}, model {client.model}; end it with Ctrl-C")
        while client.is_healthy():
            time.sleep(1)
        raise HarnessError("the server has ended by itself; its log tells why")

    def _environment(self, cache: Cache) -> dict[str, str]:
        ours = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(cache.compiled)}
        return ours | compiler_environment() | os.environ

    def _eager(self) -> list[str]:
        """vLLM compiles models with g++; without one both sides of the comparison run uncompiled."""
        return [] if has_compiler() else ["--enforce-eager"]

    def _say(self, text: str) -> None:
        self._step += 1
        self.console.print(f"[bold]{self._step}/{_STEPS}[/] {text}", highlight=False)

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)
