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
    assert len(asked) == 9
    for name, signature in asked.items():
        assert list(inspect.signature(getattr(lane, name)).parameters) == list(signature.parameters)[1:]
