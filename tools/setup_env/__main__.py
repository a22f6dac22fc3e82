"""Make .venv, or do nothing when it is as it should be: `python3 -m tools.setup_env [--venv DIR]`."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tools.setup_env import stamp
from tools.setup_env.pins import Pin, read_pins
from tools.setup_env.places import ROOT, Places
from tools.setup_env.say import SetupError, Timer, complain, say
from tools.setup_env.steps import DISK_GIB, run_steps

P = TypeVar("P", bound=Places)


def main() -> int:
    """Return 0 when the environment is whole, 1 after saying why it is not."""
    costs = f"a few minutes and up to {DISK_GIB} GB of disk"
    return run("setup_env", __doc__, ROOT / ".venv", costs, Places, stamp.reason_to_run, _make)


def run(
    prog: str,
    about: str,
    default: Path,
    costs: str,
    places_of: Callable[[Path, Path], P],
    reason_to_run: Callable[[P, list[Pin]], str | None],
    make: Callable[[P, list[Pin]], object],
) -> int:
    """One set-up command, alone in its clone: `make` the environment that the command line names, if there is reason.

    `costs` says what the first time takes.
    """
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--venv", type=Path, default=default, help="the environment's folder")
    places = places_of(ROOT, parser.parse_args().venv.absolute())
    try:
        with alone(places):
            pins = read_pins(places.lock)
            reason = reason_to_run(places, pins)
            if reason is not None:
                timer = Timer()
                say(f"{reason}; the first time takes {costs}")
                make(places, pins)
                say(f"done in {timer}; `. {os.path.relpath(places.venv)}/bin/activate` to use it by hand")
            return 0
    except SetupError as error:
        complain(str(error))
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on from here")
    return 1


def _make(places: Places, pins: list[Pin]) -> None:
    run_steps(places, pins)
    if shutil.which("g++") is None:
        say(
            "note: there is no g++ on PATH, with which vLLM compiles models and parts of itself; serve with "
            "`TORCHDYNAMO_DISABLE=1 vllm serve ... --enforce-eager`. `make demo` and `make test` do so by themselves"
        )


@contextmanager
def alone(places: Places) -> Iterator[None]:
    """Hold a lock on the clone's folder, so that two commands started at once do not set up the same environment."""
    handle = os.open(places.root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up of this clone is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
