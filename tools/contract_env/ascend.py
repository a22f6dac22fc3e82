"""vllm-ascend: downloaded once as a source distribution, installed from that file, its tests unpacked beside it."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tools.contract_env.places import ContractPlaces
from tools.setup_env import installed
from tools.setup_env.commands import run_logged
from tools.setup_env.pins import Pin
from tools.setup_env.say import SetupError, Timer, say

BUILD_VARIABLES = ("COMPILE_CUSTOM_KERNELS=0", "SOC_VERSION=ascend910_9391")
"""No kernels, and any product: the build writes it into `_build_info`, which a simulated device replaces."""

# What of the sources is no part of the installed package and is read by our tests: theirs, and pytest's settings.
UNPACKED = ("tests/", "pyproject.toml")
_ADVICE = "Check the network and pip's settings (`pip config list`), then run the same command again."


def download(places: ContractPlaces, pin: Pin) -> Path:
    """Return the source distribution, downloaded unless it is there; pip compares its hash with the lock."""
    found = _archive(places, pin)
    if found is not None:
        return found
    timer = Timer()
    say(f"downloading the sources of {pin.requirement} (21 MB)")
    # pip asks the sources for their metadata while it downloads them, which runs their build with these variables.
    command = [*_pip(places), "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--pre"]
    command += ["--require-hashes", "-r", str(places.ascend_lock), "-d", str(places.sources)]
    run_logged(command, places.log, f"could not download {pin.requirement}", _ADVICE)
    found = _archive(places, pin)
    if found is None:
        raise SetupError(f"pip left no source distribution of {pin.requirement} in {places.sources}; {_ADVICE}")
    say(f"downloaded them in {timer}")
    return found


def install(places: ContractPlaces, pin: Pin, archive: Path) -> None:
    """Build and install the package from its sources, without what it requires: the lock has that."""
    site_packages = places.site_packages()
    if site_packages is not None and not installed.missing(site_packages, [pin]):
        return
    timer = Timer()
    say(f"installing {pin.requirement}, without its kernels")
    command = [*_pip(places), "install", "--no-deps", "--no-build-isolation", str(archive)]
    run_logged(command, places.log, f"could not install {pin.requirement}", _ADVICE)
    say(f"installed it in {timer}")


def unpack(places: ContractPlaces, archive: Path) -> None:
    """Lay out the parts of the sources that tests read, anew each time: nobody may have changed them."""
    shutil.rmtree(places.unpacked, ignore_errors=True)
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            top, _, inside = member.name.partition("/")
            if top and inside.startswith(UNPACKED):
                member.name = inside
                file.extract(member, places.unpacked, filter="data")
    say(f"unpacked its tests to {places.unpacked}")


def _archive(places: ContractPlaces, pin: Pin) -> Path | None:
    found = list(places.sources.glob(f"vllm_ascend-{pin.version}.tar.gz"))
    return found[0] if found else None


def _pip(places: ContractPlaces) -> list[str]:
    python = [str(places.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    return ["env", *BUILD_VARIABLES, *python]
