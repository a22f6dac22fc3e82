"""A device check tells what a simulated device does that is wrong on purpose, and that nothing is wrong elsewhere."""

from collections.abc import Iterator

import pytest
from cli.device_check.scenes import SPOILED_RANK, SPOILED_TOKEN, Wrong

from vllm_megamoe.cli.device_check.examine import examine
from vllm_megamoe.cli.device_check.report import Agreement, Answer
from vllm_megamoe.testing.ranks import World

pytestmark = pytest.mark.full

# The number behind a switch, as docs/simulator.md has it.
NAMED = {
    "excess8_nibbles": ("int4_nibbles", "offset_binary"),
    "window_factor_1": ("window", "1 times HCCL_BUFFSIZE"),
    "w4a8_receive": ("w4a8_capacity", "twice"),
    "fp16_saturates": ("fp16_overflow", "saturate"),
    "scale_bits_18": ("scale_bits", "18 bits"),
}


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[World]:
    world = World(2)
    yield world
    world.stop()


def asked(world: World, profile: str, wrong: Wrong) -> tuple[dict[str, Answer], dict[str, Agreement]]:
    answers, agreements = examine(world, profile, wrong)
    return {a.question: a for a in answers}, {a.use_case: a for a in agreements}


@pytest.mark.parametrize("profile", ["a2@9.1", "a3@9.1", "a3@9.2", "950@9.1", "950@9.2"])
def test_a_device_as_described_holds(profile: str, two_ranks: World) -> None:
    answers, agreements = asked(two_ranks, profile, Wrong())
    assert {a.question: a.answer for a in answers.values() if not a.is_expected} == {}
    assert all(a.equal and a.agrees and not a.problem for a in agreements.values())
    on_950 = {"combine_comm_mode", "ties", "receive_overflow"} | ({"nz_views"} if profile == "950@9.2" else set())
    others = on_950 | {"nz_views", "window", "w4a8_capacity", "int4_nibbles", "scale_bits", "fp16_overflow"}
    assert answers.keys() == (on_950 if profile.startswith("950") else others)


@pytest.mark.parametrize("switch", NAMED)
def test_a_deviation_is_named(switch: str, two_ranks: World) -> None:
    """And explains all: with the device's own answers the twin computes what it does."""
    answers, agreements = asked(two_ranks, "a3@9.2", Wrong((switch,)))
    question, answer = NAMED[switch]
    assert {a.question: a.answer for a in answers.values() if not a.is_expected} == {question: answer}
    assert all(a.agrees for a in agreements.values())


def test_a_deviation_that_nobody_knows_is_a_mismatch(two_ranks: World) -> None:
    for profile, use_cases in (("a3@9.2", 3), ("950@9.2", 3)):
        _, agreements = asked(two_ranks, profile, Wrong(spoiled=True))
        assert len(agreements) == use_cases
        for each in agreements.values():
            assert not each.agrees
            assert (each.rank, each.token) == (SPOILED_RANK, SPOILED_TOKEN)
            assert each.error == pytest.approx(0.03, rel=0.1)  # bf16 keeps 8 bits: 1.03 is 1.03125 or so
