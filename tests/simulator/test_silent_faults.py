"""Pairs: the simulated device does it wrong without a word, the twin with the product's profile rejects it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from simulator import faults, misread

from vllm_megamoe.layout import AclFormat
from vllm_megamoe.testing.ranks import Failure, World


@dataclass(frozen=True)
class Pair:
    """One fault on one product; `words` stand in the rejection: the argument, and what the device would do."""

    name: str
    shown: Callable[..., bool]
    tried: Callable[..., None]
    words: tuple[str, ...]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.shown.__name__.removeprefix("shown_"), self.name, *map(str, self.arguments)])


SILENT = "The device would not reject"
A2_A3 = ("a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2")

PAIRS = [
    *(
        Pair(name, faults.shown_router_weights, faults.tried_router_weights, ("topk_weights.dtype=BF16", SILENT))
        for name in A2_A3
    ),
    *(
        Pair(name, faults.shown_second_buffer, faults.tried_second_buffer, ("group=", SILENT), (destroyed,))
        for name, destroyed in (("950@9.2", False), ("950@9.2", True), ("950@9.1", True))
    ),
    Pair("950@9.2", misread.shown_clamp_0, misread.tried_clamp_0, ("activation_clamp=0.0", SILENT)),
    Pair("950@9.1", misread.shown_clamp_ignored, misread.tried_clamp_ignored, ("activation_clamp=0.5", SILENT)),
    Pair("950@9.2", misread.shown_clamp_of_situglu, misread.tried_clamp_of_situglu, ("activation_clamp=0.5", SILENT)),
    Pair("950@9.1", misread.shown_fp4, misread.tried_fp4, ("l1_weights=", "FLOAT4_E2M1", SILENT), ("a8w4-fp",)),
    Pair("950@9.1", misread.shown_fp4, misread.tried_fp4, ("FLOAT4_E2M1", SILENT), ("a4w4-fp",)),
    Pair("a3@9.2", misread.shown_int32_rows, misread.tried_int32_rows, ("l1_weights", SILENT)),
    Pair("a3@9.2", misread.shown_mixed_list, misread.tried_mixed_list, ("l1_weights",)),
    Pair(
        "a2@9.2",
        misread.shown_shared_experts,
        misread.tried_shared_experts,
        ("shared_l1_weights=1 experts", SILENT),
        ("a16w16",),
    ),
    Pair(
        "a3@9.2",
        misread.shown_shared_experts,
        misread.tried_shared_experts,
        ("shared_l1_weights=1 experts", SILENT),
        ("a8w8-int",),
    ),
    *(
        Pair(
            "950@9.2",
            misread.shown_other_format,
            misread.tried_other_format,
            ("l1_weights, l2_weights=", SILENT),
            form,
        )
        for form in (
            ("a8w8-fp", "l2_weights", AclFormat.FRACTAL_NZ),
            ("a4w4-fp", "l1_weights", AclFormat.FRACTAL_NZ_C0_16),
            ("a4w4-fp", "l2_weights", AclFormat.FRACTAL_NZ),
        )
    ),
    *(
        Pair(name, misread.shown_short_scales, misread.tried_short_scales, ("l1_weights_sf.shape=[1024]",), (use_case,))
        for name, use_case in (("a2@9.1", "a8w8-int"), ("a3@9.2", "a8w4-int"))
    ),
    Pair("950@9.2", misread.shown_bias, misread.tried_bias, ("l1_bias",)),
    *(Pair(name, faults.shown_overflow, faults.tried_overflow, ("max_recv_token_num=16", SILENT)) for name in A2_A3),
    *(
        Pair(name, faults.shown_unequal_rows, faults.tried_unequal_rows, ("rows", "6, 3", SILENT), (use_case,))
        for name in A2_A3
        for use_case in ("a16w16", "a8w8-int")
    ),
    *(
        Pair(name, faults.shown_unequal_layers, faults.tried_unequal_layers, ("dispatch_quant_mode=2", SILENT))
        for name in ("a2@9.1", "a3@9.2")
    ),
    *(
        Pair(name, faults.shown_weights_type, faults.tried_weights_type, ("topk_weights_type=1", SILENT))
        for name in ("a2@9.2", "a3@9.2")
    ),
]


def on_both(pair: Pair) -> list[tuple[Any, ...]]:
    return [(rank, pair.name, *pair.arguments) for rank in range(2)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_simulated_device_shows_it(pair: Pair, two_ranks: World) -> None:
    assert two_ranks.run(pair.shown, on_both(pair)) == [True, True]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_twin_rejects_it(pair: Pair, two_ranks: World) -> None:
    for failure in two_ranks.outcomes(pair.tried, on_both(pair)):
        assert isinstance(failure, Failure)
        assert failure.kind == "OperatorError", failure.details
        for word in pair.words:
            assert word in failure.message


def test_950_would_hang_on_too_many_rows(two_ranks: World) -> None:
    for failure in two_ranks.outcomes(faults.hang_950, [(0, "950@9.2"), (1, "950@9.2")]):
        assert isinstance(failure, Failure)
        assert (failure.kind, "would hang" in failure.message) == ("SimulatedHang", True)
    for failure in two_ranks.outcomes(faults.tried_overflow_950, [(0, "950@9.2"), (1, "950@9.2")]):
        assert isinstance(failure, Failure)
        assert (failure.kind, "hang" in failure.message) == ("OperatorError", True), failure.details


@pytest.mark.parametrize("name", ["a3@9.1", "a3@9.2"])
def test_too_many_rows_may_end_the_call_instead(name: str, two_ranks: World) -> None:
    """24 rows fit into 24 places; into 16 they do not. With `shown_overflow` these are both endings of #17202."""
    for failure in two_ranks.outcomes(faults.overflow_ends, [(0, name), (1, name)]):
        assert isinstance(failure, Failure)
        assert failure.kind == "SimulatedAicoreError", failure.details
        assert "24 rows came to a rank, max_recv_token_num=16: AICore error, error code 507057" in failure.message


@pytest.mark.parametrize(
    ("name", "deviate", "enough"),
    [("a3@9.1", False, False), ("a3@9.1", False, True), ("a2@9.1", True, False), ("a3@9.2", True, False)],
)
def test_w4a8_loses_the_later_experts_rows(name: str, deviate: bool, enough: bool, two_ranks: World) -> None:
    arguments = [(rank, name, deviate, enough) for rank in range(2)]
    assert two_ranks.run(faults.shown_w4a8_receive, arguments) == [True, True]


@pytest.mark.parametrize("name", ["a2@9.1", "a2@9.2", "a3@9.2"])
def test_w4a8_of_other_products_and_revisions_is_right(name: str, two_ranks: World) -> None:
    # op kernel a3, CombineV2 before 2026-07-23: A2 has another combine, the newer source the fix (failures.md B05)
    assert two_ranks.run(faults.w4a8_receive_is_right, [(0, name), (1, name)]) == [True, True]


def test_the_twin_wants_twice_the_capacity_for_w4a8(two_ranks: World) -> None:
    for failure in two_ranks.outcomes(faults.tried_w4a8_receive, [(0, "a3@9.1"), (1, "a3@9.1")]):
        assert isinstance(failure, Failure)
        assert "max_recv_token_num=0; expected at least 16" in failure.message


@pytest.mark.parametrize("name", A2_A3)
def test_masked_rows_hold_another_layers_data(name: str, two_ranks: World) -> None:
    assert two_ranks.run(faults.shown_masked_rows, [(0, name), (1, name)]) == [True, True]
    assert two_ranks.run(faults.first_call_masked, [(0, name), (1, name)]) == [True, True]
    assert two_ranks.run(faults.strided_ids, [(0, name), (1, name)]) == [True, True]
    nan = [mask == 0 for mask in faults.MASK]
    assert two_ranks.run(faults.masked_by_twin, [(0, name), (1, name)]) == [(nan, True), (nan, True)]


def test_scales_beyond_the_last_channel_are_not_read(two_ranks: World) -> None:
    assert two_ranks.run(misread.long_scales, [(0, "a3@9.2"), (1, "a3@9.2")]) == [True, True]


def test_ids_of_minus_one_leave_the_old_row(two_ranks: World) -> None:
    right, old = [True, False, True, True, False, True], [True] * 6
    assert two_ranks.run(faults.shown_minus_one, [(0, "950@9.2"), (1, "950@9.2")]) == [(right, old)] * 2
    nan = [not ok for ok in right]
    assert two_ranks.run(faults.minus_one_by_twin, [(0, "950@9.2"), (1, "950@9.2")]) == [nan] * 2
