"""Drawn combinations of use case, activation, layout, shared experts, modes, mask and capacity against the oracle."""

from dataclasses import replace
from typing import Any

import numpy as np
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.compare import check, check_bits
from ops.operands import Form
from oracle.activations import Activation
from oracle.case import Case, Rank
from oracle.make import MX_ELEMENTS, Shape, make_case, make_experts

from vllm_megamoe.testing.ranks import World

# parameters at which the gates of grid data are saturated; the clamp lies within their range
ACTIVATIONS = [
    Activation(),
    Activation("swiglu", clamp=100.0),
    Activation("swiglustep", clamp=90.0),
    Activation("swigluoai", clamp=100.0, alpha=2.5, beta=-3.0),
    Activation("situglu", beta=2.0),
]
SHAPES = [(96, 64), (160, 96), (72, 40)]
drawn = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _modes(draw: st.DrawFn, use_case: str) -> dict[str, Any]:
    """Modes that may stand together (operator_readme.txt, constraints)."""
    forward = draw(st.sampled_from([0, 1]))
    ready = use_case in MX_ELEMENTS and draw(st.booleans())
    merged = 0 if ready and not forward else draw(st.sampled_from([0, 0, 1]))
    quantised = 0 if merged else draw(st.sampled_from([0, 3, 4]))
    return {
        "topk_weights_type": forward,
        "prequantised": ready,
        "combine_comm_mode": merged,
        "combine_quant_mode": quantised,
    }


def _with_shared(draw: st.DrawFn, case: Case, shape: Shape, rng: np.random.Generator) -> Case:
    """Shared experts: in the MX use cases often of another weight and dispatch type; INT4 takes none."""
    count = draw(st.integers(0, 2))
    if case.use_case == "a8w4-int" or not count:
        return case
    weight, dispatch = None, None
    if case.use_case in MX_ELEMENTS:
        kinds = [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e2m1", "e4m3"), ("e2m1", "e2m1")]
        weight, dispatch = draw(st.sampled_from([k for k in kinds if not case.prequantised or k[1] == case.act_elem]))
    made = [make_experts(rng, case.use_case, shape, count, grid=True, elem=weight) for _ in case.ranks]
    ranks = tuple(replace(rank, shared=shared) for rank, shared in zip(case.ranks, made, strict=True))
    return replace(case, ranks=ranks, shared_elem=dispatch)


@st.composite
def cases(draw: st.DrawFn, ranks: int) -> Case:
    """A call on grid data."""
    use_case = draw(st.sampled_from(["a16w16", "a8w8-int", "a8w4-int", *MX_ELEMENTS]))
    hidden, intermediate = draw(st.sampled_from(SHAPES))
    tokens = tuple(draw(st.integers(1, 6)) for _ in range(ranks))
    shape = Shape(tokens, 2 * ranks, hidden, intermediate, draw(st.integers(1, 2 * ranks)))
    seed = draw(st.integers(0, 1 << 16))
    elem = draw(st.sampled_from(["e4m3", "e5m2"])) if use_case == "a8w8-fp" else None
    case = replace(make_case(use_case, shape, seed=seed, act_elem=elem), **_modes(draw, use_case))
    case = _with_shared(draw, case, shape, np.random.default_rng(seed))
    recv = draw(st.sampled_from([0, 0, 5])) if not case.combine_comm_mode else 0
    act = draw(st.sampled_from(ACTIVATIONS))
    return replace(case, ranks=tuple(_worn(draw, r) for r in case.ranks), act=act, max_recv_token_num=recv)


def _worn(draw: st.DrawFn, rank: Rank) -> Rank:
    """Some ids are -1, some tokens masked."""
    ids = rank.topk_ids.copy()
    for slot in draw(st.sets(st.tuples(st.integers(0, len(ids) - 1), st.integers(0, ids.shape[1] - 1)), max_size=3)):
        ids[slot] = -1
    mask = draw(st.none() | st.lists(st.sampled_from([0, 1]), min_size=len(ids), max_size=len(ids)))
    return replace(rank, topk_ids=ids, mask=None if mask is None else np.int8(mask))


forms = st.builds(Form, st.booleans(), st.booleans(), st.sampled_from(["int8", "int32"]))


def hold(case: Case, form: Form, world: World | None) -> None:
    """Bits, except where merging per card leaves a rounding open."""
    (check if case.combine_comm_mode else check_bits)(case, form, world)


@settings(drawn, max_examples=examples(150, 2000))
@given(case=cases(1), form=forms)
def test_on_one_rank(case: Case, form: Form) -> None:
    hold(case, form, None)


@settings(drawn, max_examples=examples(50, 500))
@given(case=cases(2), form=forms)
def test_on_two_ranks(two_ranks: World, case: Case, form: Form) -> None:
    hold(case, form, two_ranks)
