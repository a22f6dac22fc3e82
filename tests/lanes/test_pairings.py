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
    [("cpu", "0.31.0"), ("cpu", "0.3.0"), ("cpu", "1.32.0"), ("npu", "0.30.0"), ("cuda", "0.32.0")],
)
def test_others_are_refused_by_name(platform: str, version: str) -> None:
    with pytest.raises(ConfigError) as error:
        lanes.find_lane(platform, version)
    assert f"vLLM {version} on {platform}; expected vLLM 0.30 or 0.32 on cpu" in str(error.value)


@pytest.mark.parametrize("pairing", lanes.PAIRINGS, ids=str)
def test_a_pairing_provides_all_that_is_asked_of_it(pairing: lanes.Pairing) -> None:
    asked = {
        name: inspect.signature(f) for name, f in vars(lanes.Lane).items() if inspect.isfunction(f) and name[0] != "_"
    }
    lane = pairing.load()
    assert len(asked) == 5
    for name, signature in asked.items():
        assert list(inspect.signature(getattr(lane, name)).parameters) == list(signature.parameters)[1:]
