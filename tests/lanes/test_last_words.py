"""An error of ours is the last thing on the user's screen: its sentence alone, without a traceback."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lanes.live.tiny_configs import TINY


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "INFO", **environment},
        timeout=300,
        check=False,
    )


RAISES = """
import sys
from vllm_megamoe.errors import ConfigError, PeerError
from vllm_megamoe.lanes import last_words
before = []
original = sys.excepthook
sys.excepthook = lambda *error: (before.append(error), original(*error))
last_words.install()
last_words.install()
def chained():
    try:
        raise PeerError("rank 1 is gone; expected it. Look at its log.")
    except PeerError as error:
        raise RuntimeError("the engine stopped") from error
def fail(kind):
    if kind == "chained":
        chained()
    raise {"ours": ConfigError, "theirs": ValueError}[kind]("two lines:\\n  1. of words")
fail(sys.argv[1])
"""


def test_our_error_is_its_sentence_alone() -> None:
    done = run(RAISES, "ours")
    assert (done.returncode, done.stderr) == (1, "two lines:\n  1. of words\n")


def test_other_errors_are_as_before() -> None:
    done = run(RAISES, "theirs")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: two lines:\n  1. of words\n")


def test_an_error_that_others_raise_because_of_ours_ends_with_our_sentence() -> None:
    done = run(RAISES, "chained")
    assert "RuntimeError: the engine stopped\n" in done.stderr
    assert done.stderr.endswith("\nrank 1 is gone; expected it. Look at its log.\n")


def test_debug_level_keeps_the_traceback() -> None:
    done = run(RAISES, "ours", VLLM_LOGGING_LEVEL="DEBUG")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("\ntwo lines:\n  1. of words\n")


# Two workers fail alike, one after the other; their parent, an engine core, knows them only as failed, and so on up.
WORKERS = """
import logging, multiprocessing, os, sys
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.lanes import last_words

def logged(message, error):
    try:
        raise error
    except type(error):
        logging.getLogger("vllm.v1.executor").exception(message)

def child():
    logger = logging.getLogger("vllm")
    if not any(type(handler) is logging.StreamHandler for handler in logger.handlers):  # a forked child has it
        logger.addHandler(logging.StreamHandler())
    last_words.install()
    last_words.install()

def worker(rank):
    child()
    if rank == 0:
        logged("Before all.", KeyError("of vLLM"))
    logged("WorkerProc hit an exception.", OperatorError("300 rows in one step; expected 256. Bring fewer."))
    logged("WorkerProc hit an exception.", OperatorError("an echo"))
    logged("WorkerProc failed.", KeyError("because of it"))

def core(method):
    child()
    context = multiprocessing.get_context(method)
    for rank in range(2):
        process = context.Process(target=worker, args=(rank,))
        process.start()
        process.join()
    logged("EngineCore failed to start.", RuntimeError("a worker failed"))
    raise RuntimeError("a worker failed")

if __name__ == "__main__":
    last_words.install()
    last_words.listen()
    folder = os.environ[last_words._NOTES]
    process = multiprocessing.get_context(sys.argv[1]).Process(target=core, args=(sys.argv[1],), name="EngineCore")
    process.start()
    process.join()
    print(folder)
    raise RuntimeError("see above")
"""
SENTENCE = "300 rows in one step; expected 256. Bring fewer."


def workers(tmp_path: Path, method: str, level: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    return subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_LOGGING_LEVEL": level},
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_workers_error_comes_last_and_once_and_each_process_tells_it_in_a_line(method: str, tmp_path: Path) -> None:
    done = workers(tmp_path, method, "INFO")
    lines = done.stderr.splitlines()
    # What came before, or comes without an error of ours, is as vLLM tells it.
    assert lines[0] == "Before all."
    assert lines[1].startswith("Traceback")
    assert lines[-12] == "KeyError: 'of vLLM'"
    one_rank = [
        f"WorkerProc hit an exception. {SENTENCE}",
        "WorkerProc hit an exception. an echo",
        "WorkerProc failed. KeyError: 'because of it'",
    ]
    assert lines[-11:] == [
        *one_rank,
        *one_rank,
        "EngineCore failed to start. RuntimeError: a worker failed",
        *("Process EngineCore:", "RuntimeError: a worker failed"),
        "RuntimeError: see above",
        SENTENCE,
    ]
    assert done.stderr.count("Traceback") == 1
    assert not Path(done.stdout.strip()).exists()


def test_debug_level_keeps_every_processs_traceback(tmp_path: Path) -> None:
    done = workers(tmp_path, "fork", "DEBUG")
    assert done.stderr.count("Traceback (most recent call last)") == 1 + 2 * 3 + 1 + 1 + 1
    assert done.stderr.endswith(f"\nRuntimeError: see above\n{SENTENCE}\n")


LISTENS = """
import os
from vllm_megamoe.lanes import last_words
last_words.install()
last_words.listen()
print(os.environ[last_words._NOTES])
raise RuntimeError("of vLLM")
"""


def test_a_program_that_an_engines_process_starts_has_notes_of_its_own(tmp_path: Path) -> None:
    others = tmp_path / "vllm-megamoe-of-another-1"
    others.mkdir()
    (others / "7.txt").write_text("another engine's words")
    done = run(LISTENS, _VLLM_MEGAMOE_NOTES=str(others))
    assert Path(done.stdout.strip()) != others
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("RuntimeError: of vLLM\n")
    assert (others / "7.txt").exists()


def test_vllm_serve_ends_with_the_sentence(tmp_path: Path) -> None:
    """The whole way of a user: a wrong option and a wrong variable, and nothing but them at the end of the screen."""
    (tmp_path / "config.json").write_text(json.dumps(TINY["Qwen3-MoE"]))
    options = json.dumps({"megamoe": {"use_csae": "auto"}})
    named = ["--model", str(tmp_path), "--quantization", "megamoe", "--additional-config", options]
    done = subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *named, "--skip-tokenizer-init"],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_MEGAMOE_TIMEOUT_S": "soon", "HF_HUB_OFFLINE": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-3000:]
    head, first, second = done.stderr.splitlines()[-3:]
    assert head.endswith("--quantization megamoe cannot serve this, 2 rule(s) violated:")
    assert re.search(r"1\. VLLM_MEGAMOE_TIMEOUT_S='soon'; expected a number of seconds", first)
    assert "2. additional_config['megamoe']: 'use_csae' is not an option; did you mean 'use_case'?" in second
    assert "Traceback" not in done.stdout + done.stderr


def test_a_note_that_cannot_be_written_stops_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A full disk, or a folder that cannot be made: whoever logs goes on, and the line is logged all the same."""
    from vllm_megamoe.errors import OperatorError
    from vllm_megamoe.lanes import last_words

    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setattr(last_words, "_folder", lambda: blocked / "notes")
    said: list[str] = []
    handler = last_words._TakeDown(logging.ERROR)
    monkeypatch.setattr(handler, "handleError", lambda record: said.append(record.getMessage()))
    error = OperatorError("the reason")
    record = logging.LogRecord("vllm", logging.ERROR, __file__, 1, "failed:", None, (OperatorError, error, None))
    handler.emit(record)
    assert said == ["failed:"]
    assert record.getMessage() == "failed: the reason"


def test_a_rank_that_vllms_own_exchange_misses_is_told_in_a_sentence() -> None:
    from vllm_megamoe.lanes.last_words import lost_rank

    gloo = RuntimeError("[/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.7]:62881: Connection reset by peer. ...")
    wrapped = RuntimeError(f"Worker failed with error '{gloo}', please check the stack trace above")
    assert str(lost_rank(gloo)) == str(lost_rank(wrapped))
    assert str(lost_rank(gloo)).startswith("The connection to a rank of this engine on 10.0.0.7 broke")
    assert lost_rank(RuntimeError("Connection refused")) is None
    assert lost_rank(None) is None
