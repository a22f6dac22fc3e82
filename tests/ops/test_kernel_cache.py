"""Where kernels are kept, and what happens where they cannot be made, kept or read."""

import importlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ops.compare import check
from oracle.make import Shape, make_case

from vllm_megamoe.ops.twin.kernels import build, product

# One that doubles the number behind the frame's address.
ASSEMBLY = """define void @run(ptr %frame) {
  %old = load i64, ptr %frame, align 8
  %new = shl i64 %old, 1
  store i64 %new, ptr %frame, align 8
  ret void
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_MEGAMOE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept" / "kernels"


def doubled(caplog: pytest.LogCaptureFixture) -> tuple[int, str]:
    """What a new kernel makes of 21, and the line that told of it."""
    caplog.clear()
    caplog.set_level(logging.INFO, "vllm_megamoe.ops.twin.kernels.build")
    kernel, frame = build.build("doubles", ASSEMBLY), torch.tensor([21])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kernel(frame.data_ptr())
    torch.set_num_threads(threads)
    (record,) = caplog.records
    return int(frame), record.getMessage()


def test_a_kernel_is_made_once_and_read_then(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, line = doubled(caplog)
    assert found == 42
    assert f"kernel doubles for {build.processor()} made in" in line
    (file,) = folder.iterdir()
    assert file.name.startswith("doubles-")
    found, line = doubled(caplog)
    assert found == 42
    assert " read in " in line
    assert str(file) in line


@pytest.mark.parametrize("left", [0, 10, 32, 100, -1])
def test_a_torn_file_is_made_anew(folder: Path, caplog: pytest.LogCaptureFixture, left: int) -> None:
    doubled(caplog)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    found, line = doubled(caplog)
    assert found == 42
    assert " made in " in line
    assert file.read_bytes() == whole


def test_other_code_is_another_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    doubled(caplog)
    build.build("doubles", ASSEMBLY.replace("shl i64 %old, 1", "shl i64 %old, 2"))
    assert len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("VLLM_MEGAMOE_CACHE", str(tmp_path / "file"))
    found, line = doubled(caplog)
    assert found == 42
    assert "made, not kept in" in line


def test_processes_at_once_leave_whole_files(folder: Path) -> None:
    script = (
        f"from vllm_megamoe.ops.twin.kernels import build\nfor n in range(20): build.build('doubles', {ASSEMBLY!r})"
    )
    started = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    (file,) = folder.iterdir()
    assert build._read(file) is not None


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found out about this machine is found out anew, before and after."""

    def forget() -> None:
        for one in (build.why_not, build._llvm, product._ready):
            one.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.usefixtures("forgotten")
def test_without_llvmlite_torch_computes_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    caplog.set_level(logging.WARNING, "vllm_megamoe.ops.twin.kernels.product")
    for use_case in ("a16w16", "a8w8-int", "a8w4-fp"):
        check(make_case(use_case, Shape()))
    (record,) = [record for record in caplog.records if record.name.endswith("kernels.product")]
    assert "llvmlite cannot be imported" in record.getMessage()
    assert "torch computes instead" in record.getMessage()


def test_what_looks_into_every_module_finds_no_made_up_dictionary() -> None:
    """vLLM does when an engine starts; llvmlite's library would answer with a function."""
    build.registers()
    library = importlib.import_module("llvmlite.binding").ffi.lib
    assert not hasattr(library, "__dict__")
    assert callable(library.LLVMPY_GetVersionInfo)
