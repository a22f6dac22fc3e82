"""Every open question of the device has one switch with a known set of answers."""

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.numerics.switches import Numerics


def test_defaults_follow_the_device() -> None:
    assert Numerics() == Numerics("kernel", "twos_complement", "fp32", "inf", "zero")


@pytest.mark.parametrize("name", ["rule", "int4_nibbles", "scale_bits", "fp16_overflow", "stale_slots"])
def test_an_unknown_answer_is_rejected_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='perhaps'"):
        Numerics(**{name: "perhaps"})  # type: ignore[arg-type]
