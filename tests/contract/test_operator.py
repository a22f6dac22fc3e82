"""The operator's real Python package, unmodified, under our adapter: `make contract OPERATOR=PATH[,PATH]`.

What a layer of ours can say is said to it, arrives at its extension as it was meant, and comes back as the twin's rows.
The simulated device below it shares its numbers with the twin, so equality proves the way there and back.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from contract.support.checkouts import Checkout
from contract.support.launch import RECORD, run

from vllm_megamoe.simulator.install.extensions import HEAD, RELEASE_9_1

PROFILES = ("a2@9.1", "a3@9.1", "950@9.1", "a2@9.2", "a3@9.2", "950@9.2")
USE_CASES = {"a2": ("a16w16", "a8w4-int", "a8w8-int"), "950@9.1": ("a8w8-fp",)}
ON_950 = ("a4w4-fp", "a8w4-fp", "a8w8-fp")
REFUSED = {"a2@9.1": 4, "a3@9.1": 4, "950@9.1": 5, "a2@9.2": 3, "a3@9.2": 2, "950@9.2": 5}
"""How many of the refused scenes of tests/profiles are each profile's."""


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def answers(profile: str, checkouts: list[Checkout]) -> Iterator[list[dict[str, Any]]]:
    """What both ranks saw."""
    revision = profile.split("@")[1]
    found = next((each for each in checkouts if each.revision == revision), None)
    if found is None:
        pytest.skip(f"no checkout of ops-transformer with the signature of {revision} among OPERATOR=PATH[,PATH]")
    RECORD.versions[f"ops-transformer ({revision})"] = found.commit or str(found.root)
    before = found.files()
    yield run(profile, ["operator_calls"], ranks=2, places=[found.path_entry])["operator_calls"]
    assert found.files() == before, "the checkout was written"


def test_the_whole_package_is_the_real_one(profile: str, answers: list[dict[str, Any]]) -> None:
    """Its extension's arguments stand in the order that the simulated extension takes."""
    for answer in answers:
        assert answer["modules"] > 20
        names = tuple(name.replace("activation_params_list", "activation_params") for name in answer["signature"])
        assert names == (RELEASE_9_1 if profile.endswith("9.1") else HEAD)
        assert set(names) <= set(answer["schema"])


def test_every_use_case_is_called(profile: str, answers: list[dict[str, Any]]) -> None:
    expected = USE_CASES.get(profile) or (ON_950 if profile.startswith("950") else USE_CASES["a2"])
    for answer in answers:
        assert tuple(sorted({name.split()[0] for name in answer["calls"]})) == expected
    RECORD.notes.append(f"calls of the real operator package, {profile}: {len(answers[0]['calls'])}")


def test_what_arrives_is_what_was_meant(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert {name: call["wrong"] for name, call in answer["calls"].items() if call["wrong"]} == {}


def test_every_call_equals_the_twin(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert [name for name, call in answer["calls"].items() if not call["equal"]] == []
        assert all(call["spread"] > 1 for call in answer["calls"].values())


def test_refusals(profile: str, answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert len(answer["refused"]) == REFUSED[profile]
        for where, message, found, said in answer["refused"]:
            assert found == where, said
            assert re.match(f"OperatorError: .*{message}", said, re.DOTALL), said


def test_what_a_revision_cannot_say_is_refused_by_name(profile: str, answers: list[dict[str, Any]]) -> None:
    release = {"topk_weights_type", "activation_params", "shared_l1_weights"}
    later = {"combine_comm_mode", "scales", "shared_weight1_type", "shared_expert_quant_out_dtype"}
    expected = later | (release if profile.endswith("9.1") else set())
    for answer in answers:
        assert answer["unsayable"].keys() == expected
        for name, said in answer["unsayable"].items():
            assert f"{name}=" in said
            assert "no such argument" in said
