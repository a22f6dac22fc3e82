"""A server's life under a test that ends it: started, watched until it is gone, and what it leaves behind."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.traffic import Answer, send

from vllm_megamoe.testing.engines import engine_environment
from vllm_megamoe.testing.process import OwnProcess, shared_memory
from vllm_megamoe.testing.server import Client, Server

LIMIT_S = 60.0
"""Within which a server that lost a part, or was told to stop, has to be gone."""
_START_S = 600.0
OURS = ("--quantization", "megamoe", "--enable-expert-parallel", "--dtype", "float32", "--max-model-len", "256")
TP2 = (*OURS, "--enforce-eager", "--tensor-parallel-size", "2")
DP2 = (*OURS, "--enforce-eager", "--data-parallel-size", "2")


@dataclass
class Life:
    """A running server, healthy or not yet."""

    process: OwnProcess
    client: Client
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait while the server runs."""
        end = time.monotonic() + _START_S
        while not is_there():
            if self.process.exit_code() is not None or time.monotonic() > end:
                raise self.process.failed(f"no {what}")
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """Processes that hold a model's ranks, by vLLM's names for them: of an engine of one rank the engine itself."""
        titles = {pid: _title(pid) for pid in self.process.members()}
        found = [pid for pid, title in titles.items() if title.startswith("VLLM::Worker")]
        return sorted(found or [pid for pid, title in titles.items() if title.startswith("VLLM::EngineCore")])

    def blocks(self) -> set[Path]:
        """Named shared memory of all its processes."""
        found = {block for pid in self.process.members() for block in shared_memory(pid)}
        return {block for block in found if not str(block).endswith(" (deleted)")}

    def gone_after(self) -> float:
        """Seconds until no process of it is left; LIMIT_S and more where some are."""
        start = time.monotonic()
        while self.process.members() and time.monotonic() - start < LIMIT_S:
            time.sleep(0.1)
        return time.monotonic() - start


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def started(
    model: str, options: tuple[str, ...], log: Path, output: str | None = None, **variables: str
) -> Iterator[Life]:
    """A server that has just been started; `output` is a file that its standard output goes to instead of the log."""
    server = Server(Path(model), options, log)
    command = [str(Path(sys.executable).with_name("vllm")), *server.command[1:]]
    if output is not None:
        command = ["bash", "-c", f'exec "$@" > {output}', "bash", *command]
    with OwnProcess(command, log, engine_environment() | variables) as process:
        yield Life(process, Client(f"http://127.0.0.1:{server.port}", model), log)


@contextmanager
def healthy(
    model: str, options: tuple[str, ...], log: Path, output: str | None = None, **variables: str
) -> Iterator[Life]:
    """As `started`, and it answers."""
    with started(model, options, log, output, **variables) as life:
        life.wait_for(life.client.is_healthy, "health")
        yield life


@contextmanager
def under_traffic(client: Client, prompts: list[list[int]]) -> Iterator[list[Answer]]:
    """Requests of many tokens in flight; their answers are in the list once the block has ended."""
    from threading import Thread

    answers: list[Answer] = []
    thread = Thread(target=lambda: answers.extend(send(client, [(prompt, 150, None) for prompt in prompts])))
    thread.start()
    time.sleep(1.5)
    try:
        yield answers
    finally:
        thread.join(LIMIT_S)
