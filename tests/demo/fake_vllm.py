"""Stands where the command `vllm` stands: a server that answers the demo's questions and can be told to misbehave.

FAKE_MODE: fine, dies (before it is healthy), never (healthy), hangs (on a chat).
FAKE_SHIFT: added to every log-probability when the operator's flag is given.
It has a child in a process group of its own that ignores every polite signal, as a stuck worker does.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODE = os.environ.get("FAKE_MODE", "fine")
OPERATOR = "megamoe" in sys.argv
SHIFT = float(os.environ.get("FAKE_SHIFT", "0")) if OPERATOR else 0.0

STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.setpgid(0, 0)
print("(Worker pid=1) INFO 01-31 12:00:00 [worker.py:1] stubborn child is up", flush=True)
time.sleep(600)
"""

served = 0


def log(text: str) -> None:
    print(f"(APIServer pid=1) INFO 01-31 12:00:00 [fake.py:1] {text}", flush=True)


def write_load() -> None:
    file = os.environ.get("VLLM_MEGAMOE_LOAD_FILE")
    if file:
        layers = {
            f"model.layers.{layer}.mlp.experts": {"rows": [served * (layer + expert) for expert in range(8)]}
            for layer in range(2)
        }
        Path(file).write_text(json.dumps({"layers": layers}))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(503 if MODE == "never" else 200)
        self.end_headers()

    def do_POST(self) -> None:
        global served
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "messages" in body and MODE == "hangs":
            log("chat hangs")
            time.sleep(600)
        served += 1
        write_load()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer(body))


def answer(body: dict[str, Any]) -> bytes:
    if body.get("stream"):
        pieces = [{"choices": [{"delta": {"content": "y"}}]}] * body["max_tokens"]
        lines = [b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces]
        return b"".join([*lines, b"data: [DONE]\n\n"])
    if "messages" in body:
        return json.dumps({"choices": [{"message": {"content": "x" * body["max_tokens"]}}]}).encode()
    if "prompt_logprobs" in body:
        places = [
            {str(token): {"logprob": -1.0 - token + SHIFT} for token in range(body["prompt_logprobs"])}
            for _ in body["prompt"][1:]
        ]
        return json.dumps({"choices": [{"prompt_logprobs": [None, *places]}]}).encode()
    return json.dumps({"choices": [{"token_ids": list(range(body["max_tokens"]))}]}).encode()


def main() -> None:
    subprocess.Popen([sys.executable, "-c", STUBBORN])
    time.sleep(0.3)
    if MODE == "dies":
        print("(Worker pid=1) ERROR 01-31 12:00:00 [worker.py:9] builtins.MemoryError: no room for experts", flush=True)
        print("RuntimeError: Engine core initialization failed", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    log("ready")
    write_load()
    server.serve_forever()


main()
