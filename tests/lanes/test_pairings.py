"""One place chooses the lane; what it does not know is refused by name, with the list that works."""

import inspect

import pytest

from vllm_megamoe import lanes
from vllm_megamoe.errors import ConfigError


@pytest.mark.parametrize("version", ["0.30.0", "0.32.0", "0.32.1.dev7+gabc"])
def test_vllm_on_cpu_has_a_lane(version: str) -> None:
    assert lanes.find_lane("cpu", version) is lanes.running_lane()


@pytest.mark.parametrize(
    ("platform", "version"),
    [("cpu", "0.31.0"), ("cpu", "0.3.0"), ("cpu", "1.32.0"), ("cuda", "0.32.0")],
)
def test_others_are_refused_by_name(platform: str, version: str) -> None:
    with pytest.raises(ConfigError) as error:
        lanes.find_lane(platform, version)
    assert f"vLLM {version} on {platform}; expected vLLM 0.30 or 0.32 on cpu; vLLM 0.30 with" in str(error.value)


def test_force_is_for_releases_and_told_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of a known platform serves when forced, with a line about it; another platform never does."""
    for platform, version, release in (("cpu", "0.33.1", ""), ("npu", "0.31.0", "0.31.0rc1")):
        monkeypatch.delenv("VLLM_MEGAMOE_UNTESTED", raising=False)
        with pytest.raises(ConfigError, match="VLLM_MEGAMOE_UNTESTED=on serves with it all the same"):
            lanes.find_lane(platform, version, release)
        monkeypatch.setenv("VLLM_MEGAMOE_UNTESTED", "on")
        lane = next(pairing.load() for pairing in lanes.PAIRINGS if pairing.platform == platform)
        assert lanes.find_lane(platform, version, release) is lane
        (line,) = lanes.untested(platform, version, release, "2.13.0+cpu")
        assert line.startswith(f"UNTESTED: vLLM {version}")
        assert "\n" not in line
    with pytest.raises(ConfigError, match=r"vLLM 0\.32\.0 on cuda"):
        lanes.find_lane("cuda", "0.32.0")


@pytest.mark.parametrize(("torch", "told"), [("2.9.1", 1), ("2.10.0", 0), ("2.13.0+cpu", 0), ("2.14.0", 1), ("3.0", 1)])
def test_a_torch_that_nobody_has_tried_is_told(torch: str, told: int) -> None:
    found = lanes.untested("cpu", "0.32.0", "", torch)
    assert len(found) == told
    assert all(f"torch {torch}; this package is tested with torch 2.10 to 2.13" in line for line in found)


def test_what_is_installed_here_is_tested() -> None:
    assert lanes.untested_here() == []


def test_vllm_ascend_has_a_lane() -> None:
    assert lanes.find_lane("npu", "0.30.0", "0.30.0rc2").OWN_ROWS


@pytest.mark.parametrize(
    ("version", "release", "said"),
    [
        ("0.30.0", "0.30.0rc1", "vLLM 0.30.0 with vllm-ascend 0.30.0rc1 on npu"),
        ("0.30.0", "", "vLLM 0.30.0 with vllm-ascend of no known release on npu"),
        ("0.32.0", "0.30.0rc2", "vLLM 0.32.0 with vllm-ascend 0.30.0rc2 on npu"),
    ],
)
def test_other_releases_of_vllm_ascend_are_refused_by_name(version: str, release: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        lanes.find_lane("npu", version, release)
    assert said in str(error.value)
    assert "vLLM 0.30 with vllm-ascend 0.30.0rc2 on npu" in str(error.value)


@pytest.mark.parametrize("pairing", lanes.PAIRINGS, ids=str)
def test_a_pairing_provides_all_that_is_asked_of_it(pairing: lanes.Pairing) -> None:
    asked = {
        name: inspect.signature(f) for name, f in vars(lanes.Lane).items() if inspect.isfunction(f) and name[0] != "_"
    }
    lane = pairing.load()
    assert len(asked) == 10
    for name, signature in asked.items():
        assert list(inspect.signature(getattr(lane, name)).parameters) == list(signature.parameters)[1:]
