"""The losses that the table states, measured again; and that `exact` is exact on the same weights."""

import pytest
from formats.kinds import BYTES, KINDS, USE_CASES
from formats.losses import measured

STATED = [(kind, use_case) for kind, facts in KINDS.items() for use_case in facts.lossy]


@pytest.mark.parametrize(("kind", "use_case"), STATED)
def test_a_stated_loss_is_the_measured_one(kind: str, use_case: str) -> None:
    low, high = KINDS[kind].lossy[use_case]
    figures = measured(KINDS[kind].source, use_case)
    assert low <= min(figures), figures
    assert max(figures) <= high, figures
    assert high - low < 2.5 * (max(figures) - min(figures)) + 0.4 * max(figures), "the stated range says nothing"


@pytest.mark.parametrize(
    ("kind", "use_case"),
    [
        ("mxfp8", "a8w8-fp"),
        ("mxfp8", "a16w16"),
        ("mxfp4", "a8w4-fp"),
        ("mxfp4", "a8w8-fp"),
        ("mxfp4", "a16w16"),
        ("bf16", "a16w16"),
        ("int8", "a8w8-int"),
        ("fp8-block-ue8m0", "a16w16"),
    ],
)
def test_exact_is_exact(kind: str, use_case: str) -> None:
    assert use_case in KINDS[kind].exact
    assert measured(KINDS[kind].source, use_case) == (0.0,) * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_use_case_is_exact_or_lossy(kind: str) -> None:
    facts = KINDS[kind]
    assert not set(facts.exact) & set(facts.lossy)
    assert set(facts.offered) <= set(facts.lossy)
    assert set(facts.exact) | set(facts.lossy) <= set(USE_CASES)
    sizes = [BYTES[use_case] for use_case in facts.exact]
    assert sizes == sorted(sizes), "the natural use case comes first: the fewest bytes"
