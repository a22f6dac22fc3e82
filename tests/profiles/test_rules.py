"""Every rule in every profile: a value inside is taken, one outside rejected, with its message."""

import re
from itertools import product

import pytest
from profiles.cases import CASES, Case
from profiles.legal import ALL, Change, facts

from vllm_megamoe.profiles.facts import Broken
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.rules import RULES, broken_by_buffer, broken_by_call

EACH = [pytest.param(key, one, id=f"{key}-{one.rule}-{i}") for i, one in enumerate(CASES) for key in one.profiles]
PROVEN = {(one.rule, key) for one in CASES for key in one.profiles}


def broken(key: str, change: Change) -> list[Broken]:
    profile, buffer, call = facts(key, change)
    return [*broken_by_buffer(profile, buffer), *broken_by_call(profile, buffer, call)]


def text(one: Broken) -> str:
    return f"{one.argument}={one.value}; expected {one.expected} ({one.source})"


@pytest.mark.parametrize("key", ALL)
def test_the_legal_facts_break_nothing(key: str) -> None:
    assert broken(key, Change()) == []


@pytest.mark.parametrize(("key", "one"), EACH)
def test_inside(key: str, one: Case) -> None:
    for change in one.inside:
        assert broken(key, change) == [], change


@pytest.mark.parametrize(("key", "one"), EACH)
def test_outside(key: str, one: Case) -> None:
    for change in one.outside:
        found = [b for b in broken(key, change) if b.rule == one.rule]
        assert len(found) == 1, change
        assert re.match(one.message, text(found[0])), (one.message, text(found[0]))
        assert f"with profile {key.split()[0]} (" in text(found[0])
        assert found[0].remedy.endswith(".")
        assert bool(found[0].silent) == bool(one.silent)
        assert re.search(one.silent, found[0].silent)


@pytest.mark.parametrize(("key", "one"), EACH)
def test_the_same_point_as_the_device(key: str, one: Case) -> None:
    """Rules of creation are told by creation alone, those of the call by the call alone."""
    at = {rule.id: rule.at for rule in RULES}[one.rule]
    for change in one.outside:
        profile, buffer, call = facts(key, change)
        created = {b.rule for b in broken_by_buffer(profile, buffer)}
        called = {b.rule for b in broken_by_call(profile, buffer, call)}
        assert (one.rule in created, one.rule in called) == (at == "buffer", at == "call")


def test_every_rule_is_proven_on_both_sides() -> None:
    assert {rule for rule, _ in PROVEN} == {rule.id for rule in RULES}
    assert all(one.inside and one.outside for one in CASES)


def test_rules_have_names_of_their_own() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(("rule", "key"), sorted(set(product((r.id for r in RULES), ALL)) - PROVEN))
def test_a_profile_without_a_case_does_not_have_the_rule(rule: str, key: str) -> None:
    """What breaks the rule elsewhere does not break it here, so that no profile is left out by oversight."""
    for one in CASES:
        if one.rule == rule:
            for change in one.outside:
                assert rule not in {b.rule for b in broken(key, change)}, change


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.rule)
def test_profile_none_rejects_nothing(one: Case) -> None:
    for change in one.outside:
        _, buffer, call = facts(one.profiles[0], change)
        none = find_profile("none")
        assert [*broken_by_buffer(none, buffer), *broken_by_call(none, buffer, call)] == []
