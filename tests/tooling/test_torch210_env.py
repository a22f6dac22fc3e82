"""The environment of torch 2.10: its lock, and the empty libraries that stand in for CUDA's."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lock import LOCK
from tools.setup_env import stamp
from tools.setup_env.pins import Pin, find_pin, read_pins
from tools.setup_env.places import ROOT
from tools.setup_env.stamp import OWN_NAME
from tools.torch210_env import stand_ins
from tools.torch210_env.__main__ import HERE, Torch210Places

OWN = HERE / "requirements.lock"


def test_all_but_torch_is_as_in_the_main_lock() -> None:
    main = {pin.requirement for pin in read_pins(LOCK)}
    own = [pin.requirement for pin in read_pins(OWN)]
    assert find_pin(read_pins(OWN), "torch").version == "2.10.0"
    assert set(own) - main == {"torch==2.10.0"}
    assert not any("vllm" in each or "nvidia" in each for each in own)


def build(name: str, code: str, folder: Path, *more: str) -> Path:
    source, made = folder / f"{name}.c", folder / name
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", made, source, *more], check=True)
    return made


def test_a_library_that_names_absent_ones_loads_and_gets_no_device(tmp_path: Path) -> None:
    """One function under a version, as most of CUDA's, and one without; the answer is cudaErrorNoDevice."""
    if shutil.which("cc") is None:
        pytest.skip("no C++ compiler on PATH")
    (tmp_path / "lib").mkdir()
    (versions := tmp_path / "map").write_text("libcuold.so.9 { global: cuOldCount; };\n")
    lib = tmp_path / "lib"
    old = build("libcuold.so.9", "int cuOldCount(void) { return 1; }", tmp_path, f"-Wl,--version-script={versions}")
    new = build("libcunew.so.3", "int cuNewCount(void) { return 2; }", tmp_path)
    code = "int cuOldCount(void); int cuNewCount(void); int both(void) { return cuOldCount() * 1000 + cuNewCount(); }"
    user = build("libuser.so", code, lib, str(old), str(new), "-Wl,-rpath,$ORIGIN")
    old.unlink()
    new.unlink()
    with pytest.raises(OSError, match="libcu"):
        ctypes.CDLL(str(user))
    stand_ins.write(tmp_path, tmp_path / "log")
    assert ctypes.CDLL(str(user)).both() == 100 * 1000 + 100


def test_nothing_is_made_where_nothing_lacks(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    stand_ins.write(tmp_path, tmp_path / "log")
    assert list(tmp_path.rglob("*.so*")) == []


def test_a_whole_environment_needs_nothing(tmp_path: Path) -> None:
    """Its lock has no vLLM, so no stub of vLLM is missed."""
    places = Torch210Places(ROOT, tmp_path / "venv")
    site_packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    places.python.parent.mkdir(parents=True)
    places.python.symlink_to(sys.executable)
    pins = read_pins(OWN)
    for pin in [*pins, Pin(OWN_NAME, "0")]:
        folder = site_packages / f"{pin.name.replace('-', '_')}-{pin.version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n")
        (folder / "RECORD").write_text("")
    stamp.write(places)
    assert stamp.reason_to_run(places, pins) is None
