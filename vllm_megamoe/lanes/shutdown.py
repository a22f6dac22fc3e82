"""A server that is told to stop answers the requests that it has not finished, and then ends; while it starts, too.

vLLM 0.30 and 0.32 stop their engine at once (`--shutdown-timeout 0`) and then wait until all connections are closed. A
request in flight never gets another token by then, so with a patient client the server would wait for ever. Here such
requests get an error with the reason, as they do when an engine dies.

While it starts, SIGTERM raises KeyboardInterrupt wherever the main thread is. Raised in some callback it is lost, and
the server goes on to serve (seen once). So the signal is sent again when the server is ready. SIGINT does less: asyncio
turns the first one into a cancellation, which waits for the whole load, minutes of a large model, because vLLM blocks
the event loop until its engine is there. So it is handled as SIGTERM is.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from vllm_megamoe.lanes.quant_config import MegaMoeConfig

_STOPPED = "The server was told to stop before this request was finished. Send it again."
_MARK = "_vllm_megamoe_wrapped"
_LOOK_S = 0.5

Handler = Callable[[int, FrameType | None], Any]


def install() -> None:
    """Let vLLM's asynchronous front-end answer what its end leaves behind; a second call does nothing."""
    from vllm.v1.engine.async_llm import AsyncLLM

    if not getattr(AsyncLLM, _MARK, False):
        AsyncLLM.shutdown = _answering(AsyncLLM.shutdown)
        setattr(AsyncLLM, _MARK, True)
    starting = signal.getsignal(signal.SIGTERM)
    if callable(starting) and getattr(starting, "__name__", "") == "_interrupt_init":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _sent_again(starting))


def _sent_again(handler: Handler) -> Handler:
    """vLLM's handler while it starts; the running server puts its own in the place."""

    def terminate(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=_send_when_ready, args=(number, terminate), daemon=True).start()
        handler(number, frame)

    return terminate


def _send_when_ready(number: int, starting: Handler) -> None:
    while signal.getsignal(number) is starting:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), number)


def _answering(shutdown: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(shutdown)
    def answer_and_shut_down(self: Any, *args: Any, **options: Any) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        class ServerStopped(EngineDeadError):  # type: ignore[misc]
            """The one kind that vLLM's front-end hands on to a client as it is."""

            def __str__(self) -> str:
                return _STOPPED

        shutdown(self, *args, **options)
        handler = getattr(self, "output_handler", None)
        config = getattr(self, "vllm_config", None)
        if handler is None or config is None or not isinstance(config.quant_config, MegaMoeConfig):
            return
        loop = handler.get_loop()
        if not loop.is_closed():
            # vLLM shuts down in a thread beside the event loop that requests wait in.
            loop.call_soon_threadsafe(self.output_processor.propagate_error, ServerStopped())

    return answer_and_shut_down
