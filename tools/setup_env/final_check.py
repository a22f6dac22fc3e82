"""The last step: what was installed is imported and started, in the environment's own Python."""

from __future__ import annotations

from tools.setup_env.commands import run_logged
from tools.setup_env.pins import Pin
from tools.setup_env.places import Places

_CODE = """
import importlib.metadata as metadata
import torch, transformers, vllm, vllm_megamoe

def same(what, got, expected):
    assert got == expected, f"{what}: {got!r} is installed, {expected!r} is expected"

same("torch", torch.__version__, EXPECTED["torch"])
same("vllm", metadata.version("vllm"), EXPECTED["vllm"])
plugins = [point.value for point in metadata.entry_points(group="vllm.general_plugins", name="megamoe")]
same("plugin megamoe", plugins, ["vllm_megamoe.plugin:register"])
for name in LEFT_OUT:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        continue
    raise AssertionError(f"{name} is installed and does not match torch +cpu: pip uninstall {name}")
"""

LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
_ADVICE = "Remove the environment's folder and run the same command again; if it fails again, report the log."


def check(places: Places, expected: list[Pin]) -> None:
    """Import the big packages, compare versions, and start the command `vllm`; SetupError when one of them fails."""
    header = f"EXPECTED = { {pin.name: pin.version for pin in expected}!r}\nLEFT_OUT = {LEFT_OUT!r}\n"
    run_logged([str(places.python), "-c", header + _CODE], places.log, "the environment does not work", _ADVICE)
    run_logged([str(places.venv / "bin" / "vllm"), "--version"], places.log, "`vllm` does not start", _ADVICE)
