"""An error of ours is the last thing on the user's screen: its sentence alone, without a traceback."""

import json
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


# Two workers fail alike, one after the other; their parent, an engine core, knows them only as failed.
WORKERS = """
import logging, multiprocessing, os, sys
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.lanes import last_words

def worker(rank):
    last_words.install()
    logger = logging.getLogger("vllm.v1.executor")
    for message in ("300 rows in one step; expected 256. Raise --max-num-batched-tokens.", "an echo"):
        try:
            raise OperatorError(message)
        except OperatorError:
            logger.exception("WorkerProc hit an exception.")
    try:
        raise KeyError("not ours")
    except KeyError:
        logger.exception("WorkerProc failed.")

def core(method):
    last_words.install()
    context = multiprocessing.get_context(method)
    for rank in range(2):
        process = context.Process(target=worker, args=(rank,))
        process.start()
        process.join()

if __name__ == "__main__":
    last_words.install()
    last_words.listen()
    folder = os.environ[last_words._NOTES]
    process = multiprocessing.get_context(sys.argv[1]).Process(target=core, args=(sys.argv[1],))
    process.start()
    process.join()
    print(folder)
    raise RuntimeError("see above")
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_workers_error_comes_last_and_once(method: str, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, timeout=300, check=False
    )
    last = "\n300 rows in one step; expected 256. Raise --max-num-batched-tokens.\n"
    assert done.stderr.endswith(f"RuntimeError: see above{last}")
    assert not Path(done.stdout.strip()).exists()


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
