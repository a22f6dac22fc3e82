"""Each family served in float32 in every layout: the operator, vLLM's own MoE and transformers compute the same model.

Every family has one engine without the flag, on one rank, and in each layout one with the flag, and one more with its
shared experts on vLLM's own path.

On two tensor-parallel ranks (B45, B48, B50) shared experts on vLLM's own path are cut over the ranks and must be
summed; routed rows are complete and must not be; a routed factor multiplies the one and not the other.
"""

import pytest
from families.compare import check, check_rows
from families.layouts import LAYOUTS, engines, in_every_run
from families.models import FAMILIES
from families.serving import Checkpoints, Serving

pytestmark = pytest.mark.engine

ENGINES = [(layout, family, mode) for layout in LAYOUTS for family, mode in engines(layout) if mode != "own"]


def _param(layout: str, family: str, *values: str) -> object:
    marks = [] if in_every_run(layout, family) else [pytest.mark.full]
    marks += [pytest.mark.compiled] if LAYOUTS[layout].compiled else []
    return pytest.param(layout, family, *values, marks=marks, id="-".join((layout, family, *values)))


EACH = [_param(*engine) for engine in ENGINES]
ON_ONE_RANK = [_param(*engine) for engine in ENGINES if engine[0] == "one rank"]
DAMAGES = [
    _param(layout, family, mode, kind)
    for layout, family, mode in ENGINES
    for kind in FAMILIES[family].damages(mode, layout)
]


@pytest.mark.parametrize(("layout", "family", "mode"), EACH)
def test_same_as_vllms_own_moe(layout: str, family: str, mode: str, serving: Serving) -> None:
    """On every rank, for the prompts of its replica."""
    over = LAYOUTS[layout]
    for rank, run in enumerate(serving.of(layout, family, mode)):
        check(serving.own(family, over.replica_of(rank), over.replicas), run.results["none"])


@pytest.mark.parametrize(("layout", "family", "mode"), ON_ONE_RANK)
def test_same_as_transformers(
    layout: str, family: str, mode: str, serving: Serving, family_checkpoints: Checkpoints
) -> None:
    """vLLM's router and runner serve both of vLLM's engines; transformers shares no code with them."""
    found = serving.of(layout, family, mode)[0].results["none"]["prompt"]
    check_rows(family_checkpoints.transformers[family], found)


@pytest.mark.parametrize(("layout", "family", "mode"), EACH)
def test_every_moe_layer_went_through_the_operator(layout: str, family: str, mode: str, serving: Serving) -> None:
    settings = FAMILIES[family].settings
    dense = settings.get("first_k_dense_replace", settings.get("moe_layer_start_index", 0))
    dense = max(dense, settings.get("mlp_layer_types", []).count("dense"))
    where = "fused" if FAMILIES[family].fused(mode) else "vllm" if FAMILIES[family].shared else "none"
    for run in serving.of(layout, family, mode):
        assert len(run.layers) == settings["num_hidden_layers"] - dense
        assert all(layer["calls"] > 0 for layer in run.layers)
        assert {layer["shared"] for layer in run.layers} == {where}


@pytest.mark.parametrize(("layout", "family", "mode", "kind"), DAMAGES)
def test_damage_is_seen(layout: str, family: str, mode: str, kind: str, serving: Serving) -> None:
    """B45, B48, B50, negative controls: on every rank the comparison of `test_same_as_vllms_own_moe` fails."""
    over = LAYOUTS[layout]
    for rank, run in enumerate(serving.of(layout, family, mode)):
        with pytest.raises(AssertionError, match="limit"):
            check(serving.own(family, over.replica_of(rank), over.replicas), run.results[kind])
