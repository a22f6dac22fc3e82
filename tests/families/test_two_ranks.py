"""Each family on two ranks, tensor and expert parallel, against vLLM's own MoE on one rank (B45, B48, B50).

Shared experts on vLLM's own path are cut over the ranks and must be summed; routed rows are complete and must not be; a
routed factor multiplies the one and not the other. All families run in the same two processes.
"""

import pytest
from families.compare import check
from families.models import FAMILIES
from families.serving import Serving

pytestmark = pytest.mark.engine


def _marked(name: str, *values: str) -> object:
    return pytest.param(name, *values, marks=() if FAMILIES[name].every_run else pytest.mark.full)


EACH = [_marked(name, mode) for name, family in FAMILIES.items() for mode in family.modes]
DAMAGES = [
    _marked(name, mode, kind)
    for name, family in FAMILIES.items()
    for mode in family.modes
    for kind in family.damages(mode, ranks=2)
]


@pytest.mark.parametrize(("family", "mode"), EACH)
def test_same_on_every_rank(family: str, mode: str, serving: Serving) -> None:
    for rank in serving.two_ranks(family, mode):
        check(serving.own(family), rank.results["none"])


@pytest.mark.parametrize(("family", "mode", "kind"), DAMAGES)
def test_damage_is_seen(family: str, mode: str, kind: str, serving: Serving) -> None:
    for rank in serving.two_ranks(family, mode):
        with pytest.raises(AssertionError, match="limit"):
            check(serving.own(family), rank.results[kind])
