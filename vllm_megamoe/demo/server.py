"""Starts `vllm serve` and waits until it is healthy."""

import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from vllm_megamoe.demo.client import Client
from vllm_megamoe.demo.failure import DemoError
from vllm_megamoe.demo.log_lines import last_message
from vllm_megamoe.demo.process import OwnProcess
from vllm_megamoe.demo.progress import waiting

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
