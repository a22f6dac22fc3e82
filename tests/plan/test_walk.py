"""Whatever is asked, a plan or a reason comes back; and the operator takes every plan."""

from collections.abc import Iterable

import pytest
from plan import operator
from plan.walk import ALL_FORMATS, FORMATS_FEW, Question, everything, servable

from vllm_megamoe.checkpoint.formats import ExpertsFormat
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.plan import draft_plan
from vllm_megamoe.plan.verdict import Rejected
from vllm_megamoe.testing.ranks import World


def verdict_of(question: Question) -> Plan | Rejected[Plan]:
    return draft_plan(question.engine, [question.layer], question.options)


def walk(seed: int, formats: tuple[ExpertsFormat, ...]) -> tuple[int, int]:
    """Numbers of plans and refusals, each checked."""
    plans = refusals = 0
    for question in everything(seed, formats):
        verdict = verdict_of(question)
        if isinstance(verdict, Plan):
            assert len(verdict.layers) == 1, question
            plans += 1
            continue
        assert isinstance(verdict, Rejected), question
        refusals += 1
        for violation in verdict.violations:
            assert all((violation.where, violation.got, violation.expected)), question
            assert violation.remedy.endswith("."), violation
    return plans, refusals


def test_a_plan_or_a_reason() -> None:
    plans, refusals = walk(1, FORMATS_FEW)
    assert plans > 30
    assert refusals > 1000


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_plan_or_a_reason_for_every_format(seed: int) -> None:
    plans, refusals = walk(seed, ALL_FORMATS)
    assert plans > 30
    assert refusals > 1000


def taken_by_the_operator(questions: Iterable[Question], world: World, limit_s: float) -> set[tuple[str, str]]:
    """(profile, use case) of all plans that were asked about; none was rejected."""
    plans: dict[LayerPlan, str] = {}
    for question in questions:
        verdict = verdict_of(question)
        if isinstance(verdict, Plan):
            plans[verdict.layers[0]] = question.engine.dtype
    cases = list(plans.items())
    for answers in world.run(operator.run_all, [(r, cases) for r in range(2)], limit_s):
        for (plan, _), answer in zip(cases, answers, strict=True):
            assert answer == "", plan
    return {(f"{plan.profile.name} {plan.profile.topology}", plan.use_case.value) for plan, _ in cases}


# operator_readme.txt:84-85, torch_api.txt:42-48: what runs where; URMA is not known to 950 of 9.1.
INTEGERS, FLOATS = ("a16w16", "a8w8-int", "a8w4-int"), ("a8w8-fp", "a8w4-fp", "a4w4-fp")
RUNS = {
    "none mte": (*INTEGERS, *FLOATS),
    **{f"{product}@{revision} mte": INTEGERS for product in ("a2", "a3") for revision in ("9.1", "9.2")},
    "950@9.1 mte": ("a8w8-fp",),
    "950@9.2 mte": FLOATS,
    "950@9.2 urma": FLOATS,
}
EVERY = {(profile, use_case) for profile, cases in RUNS.items() for use_case in cases}


def test_the_operator_takes_every_plan(two_ranks: World) -> None:
    assert taken_by_the_operator(servable(1, 3), two_ranks, 240) == EVERY


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 6))
def test_the_operator_takes_more_plans(seed: int, two_ranks: World) -> None:
    assert taken_by_the_operator(servable(seed, 24), two_ranks, 600) == EVERY
