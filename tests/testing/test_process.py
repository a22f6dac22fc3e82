"""A program in a session of its own: environment, log, errors, and nothing left behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from vllm_megamoe.testing.process import HarnessError, OwnProcess, end_of, first_error, free_port, session_members

CHILD = """
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, signal, time; os.setpgid(0, 0); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child is up', flush=True); time.sleep(600)"])
time.sleep(600)
"""
"""A program whose child has a process group of its own and ignores SIGTERM, as a stuck worker does."""


def start(folder: Path, code: str, **variables: str) -> OwnProcess:
    return OwnProcess([sys.executable, "-c", code], folder / "log", {"PATH": os.environ["PATH"], **variables})


def wait_for(log: Path, text: str) -> None:
    end = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("grace_s", [5.0, 0.0])
def test_all_that_it_started_ends_with_it(tmp_path: Path, grace_s: float) -> None:
    process = start(tmp_path, CHILD)
    wait_for(process.log, "child is up")
    session, members = os.getsid(process.members()[0]), process.members()
    assert len(members) == 2
    assert session != os.getsid(0)
    process.stop(grace_s)
    assert session_members(session) == []
    assert process.exit_code() is not None


def test_its_shared_memory_goes_with_it(tmp_path: Path) -> None:
    """A block that its maker, ended by a signal, had no time to remove."""
    code = "import mmap, os, time; f = os.open('/dev/shm/' + os.environ['BLOCK'], os.O_CREAT | os.O_RDWR); "
    code += "os.truncate(f, 4096); m = mmap.mmap(f, 4096); print('mapped', flush=True); time.sleep(600)"
    block = Path("/dev/shm") / f"test_process {os.getpid()} {tmp_path.name}"
    with start(tmp_path, code, BLOCK=block.name) as process:
        wait_for(process.log, "mapped")
        assert block.exists()
    assert not block.exists()


def test_a_context_that_raises_ends_it_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="planted"), start(tmp_path, CHILD) as process:
        raise ValueError("planted")
    assert process.members() == []


def test_the_environment_is_what_was_given_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "1")
    with start(tmp_path, "import os; print(sorted(os.environ))", OURS="1") as process:
        assert process.wait(60) == 0
    assert "'OURS'" in process.log.read_text()
    assert "OF_THE_CALLER" not in process.log.read_text()


def test_a_wait_has_an_end_and_tells_what_the_log_says(tmp_path: Path) -> None:
    with start(tmp_path, "import time; print('busy', flush=True); time.sleep(600)") as process:
        wait_for(process.log, "busy")
        with pytest.raises(HarnessError, match=r"not done after 0\.2 s \(still running\)\n    \| busy"):
            process.wait(0.2)


def test_a_failure_shows_the_end_of_the_log_and_its_first_error(tmp_path: Path) -> None:
    code = "import sys; [print('line', n) for n in range(99)]; print('KeyError: lost'); print('end'); sys.exit(3)"
    with start(tmp_path, code) as process:
        assert process.wait(60) == 3
        text = str(process.failed("it broke"))
    assert text.startswith("it broke (exit code 3)\n")
    assert "| end\n" in text
    assert "| line 3\n" not in text
    assert text.endswith("first error in it: KeyError: lost")


def test_a_log_without_an_error_names_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\n")
    assert end_of(log) == f"    | fine\n  whole log: {log}"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("INFO 11-30 [a.py:1] fine\n", ""),
        ("WARNING 11-30 [a.py:1] limits cause errors like `OSError: too many`\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("(W pid=1) ERROR 11-30 [a.py:1] pkg.mod.OwnError: first\nRuntimeError: echo\n", "OwnError: first"),
    ],
)
def test_the_first_error_is_the_cause(log: str, told: str) -> None:
    assert first_error(log) == told


def test_a_free_port_can_be_taken() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
