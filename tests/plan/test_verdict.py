"""A refusal has a reason by its type, and tells each of them once."""

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from vllm_megamoe.plan.verdict import Rejected, Violation, merge, rejection_of

ONE = Violation("layer 1", "hidden = 3", "a multiple of 64", "Pad it.")
OTHER = Violation("layer 1", "topk = 9", "6 or 8", "Take another model.")


def test_there_is_no_refusal_without_a_reason() -> None:
    with pytest.raises(TypeError):
        Rejected(draft=None)  # type: ignore[call-arg]
    assert Rejected(ONE, draft=None).violations == (ONE,)
    with pytest.raises(FrozenInstanceError):
        Rejected(ONE, draft=None).first = OTHER  # type: ignore[misc]


def test_refusals_add_up_in_order() -> None:
    third = replace(ONE, where="engine")
    joined = Rejected(ONE, draft=7).beside([third], "a plan", None, Rejected(OTHER, ONE, draft=None))
    assert joined.violations == (third, ONE, OTHER, ONE)
    assert joined.draft == 7
    assert pickle.loads(pickle.dumps(joined)) == joined


def test_layers_alike_are_told_once() -> None:
    found = [ONE, replace(ONE, where="layer 2"), OTHER, ONE, replace(ONE, where="layer 3")]
    assert merge(found) == (replace(ONE, where="layer 1 and 2 more"), OTHER)
    assert merge([]) == ()


def test_the_error_counts_and_lists() -> None:
    lines = str(rejection_of([str(ONE), "an option is misspelt."])).splitlines()
    assert lines == [
        "--quantization megamoe cannot serve this, 2 rule(s) violated:",
        "  1. layer 1: hidden = 3; expected a multiple of 64. Pad it.",
        "  2. an option is misspelt.",
    ]
