"""The last step: versions are compared, and what can be imported without a simulated NPU is imported."""

from __future__ import annotations

from tools.contract_env.places import ContractPlaces
from tools.setup_env.commands import run_logged
from tools.setup_env.final_check import LEFT_OUT
from tools.setup_env.pins import Pin

_CODE = """
import importlib.metadata as metadata
import importlib.util
import torch, scipy, vllm_megamoe, vllm_megamoe.simulator.install

def same(what, got, expected):
    assert got == expected, f"{what}: {got!r} is installed, {expected!r} is expected"

same("torch", torch.__version__, EXPECTED.pop("torch"))
for name, version in EXPECTED.items():
    same(name, metadata.version(name), version)
points = {point.name: point.value for point in metadata.entry_points(group="vllm.platform_plugins")}
same("platform plugin of vllm-ascend", points, {"ascend": "vllm_ascend:register"})
plugins = [point.value for point in metadata.entry_points(group="vllm.general_plugins", name="megamoe")]
same("plugin megamoe", plugins, ["vllm_megamoe.plugin:register"])
assert importlib.util.find_spec("torch_npu") is None, "a torch_npu is installed; the simulated one is expected alone"
for name in LEFT_OUT:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        continue
    raise AssertionError(f"{name} is installed and does not match torch +cpu: pip uninstall {name}")
"""

_ADVICE = "Remove the environment's folder and run the same command again; if it fails again, report the log."


def check(places: ContractPlaces, expected: list[Pin]) -> None:
    """Compare versions and entry points in the environment's own Python; SetupError when one is wrong."""
    header = f"EXPECTED = { {pin.name: pin.version for pin in expected}!r}\nLEFT_OUT = {LEFT_OUT!r}\n"
    run_logged([str(places.python), "-c", header + _CODE], places.log, "the environment does not work", _ADVICE)
