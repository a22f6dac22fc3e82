"""What a plan lets through no rank refuses: its rules hold for every call that a step can be cut into.

Between devices a rank that refuses a call alone leaves the others waiting for it (ops/cann/adapter.py). What decides is
host numbers: the plan, equal on all ranks, and the rows of a step, of which a rank knows its own and the largest.
"""

from dataclasses import replace

import pytest
from plan.test_agreement import A4, INT4, INT8, MX4, MX8, layer, plan

from vllm_megamoe.layer.rows import cut_step
from vllm_megamoe.plan.layer_plan import LayerPlan, call_facts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.rules import broken_by_call

FORMS = {
    **dict.fromkeys(("a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"), ("bf16", INT8, INT4)),
    "950@9.1": (MX8,),
    "950@9.2": (MX8, MX4, A4),
}
EVERY = [(profile, form) for profile, forms in FORMS.items() for form in forms]


def rows_of_calls(found: LayerPlan) -> set[int]:
    """Rows of every call that a rank with fewer rows than the largest, or with all of them, can make."""
    capacity = found.capacity
    largest = {1, 2, 3, capacity.chunk - 1, capacity.chunk, capacity.chunk + 1, capacity.rows // 2, capacity.rows}
    pairs = {(own, most) for most in largest for own in (0, 1, most // 3, most - 1, most) if 0 < most <= capacity.rows}
    return {piece.rows for own, most in pairs for piece in cut_step(own, most, capacity)}


@pytest.mark.parametrize(("profile", "form"), EVERY)
def test_no_call_of_a_plan_that_holds_is_refused(profile: str, form: str) -> None:
    (found,) = plan(layer(3, form), profile=profile, workspace_budget_gib=0.5).layers
    rows = rows_of_calls(found)
    assert min(rows) >= 1
    assert max(rows) <= found.capacity.chunk
    for masked in {False, find_profile(profile).is_a2_a3}:
        whole = call_facts(found, "bfloat16", masked)
        for each in rows:
            assert broken_by_call(found.profile, found.buffer, replace(whole, rows=each)) == []


@pytest.mark.parametrize(("profile", "form"), EVERY)
def test_ranks_make_the_same_number_of_calls_whatever_they_bring(profile: str, form: str) -> None:
    (found,) = plan(layer(3, form), profile=profile, workspace_budget_gib=0.5).layers
    most = found.capacity.rows
    assert len({len(cut_step(own, most, found.capacity)) for own in (0, 1, most // 2, most)}) == 1
