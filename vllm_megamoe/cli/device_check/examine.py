"""All questions and use cases in two rank processes; a step that gives no answer in time is an answer."""

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from vllm_megamoe.cli.device_check.agreement import BOUND, Compared, compare
from vllm_megamoe.cli.device_check.questions import NO_ANSWER, Question, questions_of
from vllm_megamoe.cli.device_check.report import Agreement, Answer
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.use_cases import UseCase
from vllm_megamoe.testing.ranks import Failure, RankError, Ranks

STEP_LIMIT_S = 120.0
"""A step is a handful of calls of a small layer; the first one may compile the operator's extension."""

Step = Callable[[str, str, Mapping[str, str]], Any]


def run_step(profile: str, step: str, answers: Mapping[str, str]) -> Any:
    """A rank's part of one step: the answer to the question of that name, or the comparison of that use case."""
    for question in questions_of(find_profile(profile)):
        if question.name == step:
            return question.ask(profile)
    return compare(profile, UseCase(step), answers)


def examine(
    ranks: Ranks, profile: str, run: Step = run_step, limit_s: float = STEP_LIMIT_S
) -> tuple[list[Answer], list[Agreement]]:
    """Ask everything that the profile has, then compare every use case that it runs.

    The question after received rows that overflow comes last of all: it may leave a device hanging.

    Args:
        ranks: two rank processes, each with its device.
        run: what a rank does in a step.
        limit_s: seconds for one step.
    """
    found = find_profile(profile)
    *safe, dangerous = questions_of(found)
    answers = [
        _answer(question, profile, _outcomes(ranks, run, profile, question.name, {}, limit_s)) for question in safe
    ]
    known = {answer.question: answer.answer for answer in answers}
    agreements = [
        _agreement(use_case, _outcomes(ranks, run, profile, use_case.value, known, limit_s))
        for use_case in sorted(limits_of(found).use_cases.value)
    ]
    last = _outcomes(ranks, run, profile, dangerous.name, {}, limit_s)
    return [*answers, _answer(dangerous, profile, last)], agreements


def _outcomes(
    ranks: Ranks, run: Step, profile: str, step: str, answers: Mapping[str, str], limit_s: float
) -> list[Any] | str:
    """What each rank returned; the sentence where one failed, died, or gave no answer."""
    try:
        outcomes = ranks.outcomes(run, [(profile, step, answers)] * ranks.size, limit_s)
    except RankError as error:
        return str(error)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    return outcomes if not failed else "; ".join(f"rank {f.rank}: {f.kind}: {f.message}" for f in failed)


def _answer(question: Question, profile: str, outcomes: list[tuple[str, str]] | str) -> Answer:
    answer, evidence = NO_ANSWER, [outcomes if isinstance(outcomes, str) else ""]
    if not isinstance(outcomes, str):
        given = list(dict.fromkeys(answer for answer, _ in outcomes))
        answer = given[0] if len(given) == 1 else "; ".join(f"rank {r}: {a}" for r, (a, _) in enumerate(outcomes))
        evidence = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(outcomes)]
    return Answer(
        question=question.name,
        about=question.about,
        answer=answer,
        expected=question.expected(find_profile(profile)),
        evidence=tuple(evidence),
    )


def _agreement(use_case: UseCase, outcomes: list[Compared] | str) -> Agreement:
    failed = outcomes if isinstance(outcomes, str) else ""
    compared = [Compared(False, True, 0, inf)] if isinstance(outcomes, str) else outcomes
    rank = max(range(len(compared)), key=lambda r: compared[r].error)
    worst, counted = compared[rank], all(each.counts_agree for each in compared)
    return Agreement(
        use_case=use_case.value,
        agrees=counted and worst.error <= BOUND,
        equal=all(each.equal for each in compared),
        rank=rank,
        token=worst.token,
        error=worst.error if isfinite(worst.error) else None,
        bound=BOUND,
        problem=failed or ("" if counted else "expert_token_nums differ from the twin's"),
    )
