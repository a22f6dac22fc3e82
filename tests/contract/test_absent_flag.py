"""Without `--quantization megamoe` vllm-ascend is, with our plugin installed, what it is without.

Two processes take the same snapshot, one of them with our entry point left out of VLLM_PLUGINS. What may differ is
listed here by name; everything else is equal.
"""

import importlib.metadata
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from contract.support.launch import ROOT, run

OURS = "megamoe"
GROUPS = ("vllm.platform_plugins", "vllm.general_plugins")
SIMULATOR = "/vllm_megamoe/simulator/"  # in place of torch_npu's functions, in both processes
HOOK = "vllm_ascend.platform.NPUPlatform.check_and_update_config"

# Out-of-tree classes that a MoE layer needs (vllm_ascend/utils.py, register_ascend_customop).
EXPECTED_CLASSES = {
    "MoERunner": "vllm_ascend.ops.fused_moe.fused_moe.AscendMoERunner",
    "RoutedExperts": "vllm_ascend.ops.fused_moe.routed_experts.AscendRoutedExperts",
}
POLICIES = {"CAPACITY_AND_EXPERT_DENSITY", "FUSED_OR_CAPACITY", "CAPACITY_AND_WORLD_SIZE"}
PATCHES = ("vllm_ascend.patch.platform", "vllm_ascend.patch.worker")


def _others() -> str:
    """Value of VLLM_PLUGINS that names every installed plugin but ours."""
    points = {point.name for group in GROUPS for point in importlib.metadata.entry_points(group=group)}
    return ",".join(sorted(points - {OURS}))


@pytest.fixture(scope="module", params=["a2@9.2", "a3@9.2", "950@9.2"])
def snapshots(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without us, with us."""
    model = {"CONTRACT_MODEL": str(tmp_path_factory.mktemp("model"))}
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(run, request.param, ["snapshot"], 1, model | more) for more in ({"VLLM_PLUGINS": _others()}, {})
        ]
        without, with_us = [each.result()["snapshot"][0] for each in runs]
    return without, with_us


def test_vllm_ascend_comes_up_over_the_simulator(snapshots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for snapshot in snapshots:
        assert snapshot["platform"] == "vllm_ascend.platform.NPUPlatform"
        assert snapshot["selectors"].keys() == POLICIES
        assert set(PATCHES) <= set(snapshot["patches"])
        assert EXPECTED_CLASSES.items() <= snapshot["classes out of tree"].items()


@pytest.mark.parametrize(
    "part", ["selectors", "schemes", "classes out of tree", "patches", "platform", "layer", "configs", "product"]
)
def test_is_equal_with_and_without_us(part: str, snapshots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_us = snapshots
    assert with_us[part] == without[part]


def test_the_registry_has_our_name_more(snapshots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_us = snapshots
    for part in ("quantisation order", "supported quantisation"):
        assert [name for name in with_us[part] if name != OURS] == without[part]
        assert OURS not in without[part]
    found = dict(with_us["quantisation"])
    assert found.pop(OURS).startswith("vllm_megamoe.")
    assert found == without["quantisation"]


def test_one_function_is_wrapped_and_no_other(snapshots: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Functions of modules that one process alone imported are left out."""
    without, with_us = (snapshot["functions"] for snapshot in snapshots)
    changed = {name for name in without.keys() & with_us.keys() if without[name] != with_us[name]}
    package = str(ROOT / "vllm_megamoe")
    ours = {name for name, place in with_us.items() if place.startswith(package) and SIMULATOR not in place}
    assert changed == ours == {HOOK}
    assert len(without.keys() & with_us.keys()) > 10_000
