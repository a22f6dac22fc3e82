"""Each deviation changes a number that a check on a real device would look at; the twin names the right one."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from oracle.case import Case, Integer
from simulator.scenes import Simulated, inputs, layer, simulate, twin

from vllm_megamoe.environment import DEVIATION_NAMES
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.simulator import Deviations, deviations
from vllm_megamoe.simulator.deviations import active_deviations
from vllm_megamoe.testing.ranks import Failure, World


def compared(rank: int, switch: str) -> tuple[bool, bool]:
    """Whether the device agrees with the twin without the deviation, and with it."""
    case = SCENES[switch]()
    want = twin("none", case, rank)
    straight = simulate("a3@9.2", case, rank)
    with deviations(**{switch: True}):
        crooked = simulate("a3@9.2", case, rank)
    return bool(np.array_equal(straight.y, want.y, equal_nan=True)), bool(
        np.array_equal(crooked.y, want.y, equal_nan=True)
    )


def loud() -> Case:
    """Channel scales so large that sums of the second GEMM leave fp16, whose largest number is 65504."""
    case = layer("a8w8-int")
    experts = case.experts
    assert isinstance(experts, Integer)
    return replace(case, experts=replace(experts, s2=experts.s2 * np.float32(2.0**12)))


def fine() -> Case:
    """Channel scales of 19 significant bits: 10 bits behind the point of the mantissa, the last one set."""
    case = layer("a8w8-int")
    experts = case.experts
    assert isinstance(experts, Integer)
    odd = np.float32(2.0**-10) * (1 + np.float32(2.0**-10))
    return replace(case, experts=replace(experts, s13=np.full_like(experts.s13, odd)))


SCENES: dict[str, Any] = {
    "excess8_nibbles": lambda: layer("a8w4-int"),
    "fp16_saturates": loud,
    "scale_bits_18": fine,
}


def test_the_variable_names_all_switches_and_turns_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(field.name for field in fields(Deviations)) == DEVIATION_NAMES
    monkeypatch.setenv("VLLM_MEGAMOE_DEVIATIONS", "overflow_ends, w4a8_receive")
    assert active_deviations() == Deviations(overflow_ends=True, w4a8_receive=True)
    with deviations(w4a8_receive=False):
        assert active_deviations() == Deviations(overflow_ends=True)
    monkeypatch.setenv("VLLM_MEGAMOE_DEVIATIONS", "overflow")
    with pytest.raises(ConfigError, match="overflow_ends"):
        active_deviations()


@pytest.mark.parametrize("switch", SCENES)
def test_a_deviation_shows_in_y(switch: str, two_ranks: World) -> None:
    assert two_ranks.run(compared, [(0, switch), (1, switch)]) == [(True, False)] * 2


def coarse(rank: int) -> bool:
    """Scales of 18 significant bits lose nothing under scale_bits_18: no more than that one bit is dropped."""
    case = layer("a8w8-int")
    experts = case.experts
    assert isinstance(experts, Integer)
    even = np.float32(2.0**-10) * (1 + np.float32(2.0**-9))
    case = replace(case, experts=replace(experts, s13=np.full_like(experts.s13, even)))
    with deviations(scale_bits_18=True):
        return simulate("a3@9.2", case, rank).y.tobytes() == twin("none", case, rank).y.tobytes()


def test_18_bits_are_kept(two_ranks: World) -> None:
    # The grid layer's second scales have 8 bits of mantissa or fewer.
    assert two_ranks.run(coarse, [(0,), (1,)]) == [True, True]


def window(rank: int, factor_1: bool, mb: str) -> int:
    """The window that is reported for HCCL_BUFFSIZE, and a call that it just suffices for, or does not."""
    case = layer("a16w16")
    with pytest.MonkeyPatch.context() as patch, deviations(window_factor_1=factor_1):
        patch.setenv("HCCL_BUFFSIZE", mb)
        scene = Simulated("a3@9.2")
    buffer = scene.buffer(case)
    scene.call(buffer, inputs(case, rank))
    return int(buffer.ccl_buffer_size)


# A3's half for this layer: tables of 2 ranks (2 * 384 * 4 bytes), 6 * 2 records and rows of 2 KiB, flags, 10 MiB
NEEDED_MB = -(-(2 * 384 * 4 + 2 * 6 * 2 * 2048 + 512 * 1024 + 10 * 2**20) // 2**20)


def test_the_window_counts_both_directions(two_ranks: World) -> None:
    mb = str(NEEDED_MB)
    assert two_ranks.run(window, [(0, False, mb), (1, False, mb)]) == [2 * NEEDED_MB * 2**20] * 2
    for arguments in ((True, mb), (False, str(NEEDED_MB - 1))):
        for failure in two_ranks.outcomes(window, [(0, *arguments), (1, *arguments)]):
            assert isinstance(failure, Failure)
            assert (failure.kind, "ccl_buffer_size" in failure.message) == ("RuntimeError", True), failure.details


def test_deviations_end_with_their_block() -> None:
    from vllm_megamoe.simulator.deviations import Deviations, active_deviations

    with deviations(excess8_nibbles=True):
        with deviations(scale_bits_18=True):
            assert active_deviations() == Deviations(excess8_nibbles=True, scale_bits_18=True)
        assert active_deviations() == Deviations(excess8_nibbles=True)
    assert active_deviations() == Deviations()
