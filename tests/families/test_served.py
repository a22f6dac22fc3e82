"""Each family served on one rank in float32: the operator, vLLM's own MoE and transformers compute the same model.

Every family has one engine without the flag, one with it, and one more with its shared experts on vLLM's own path; all
engines run in one process.
"""

import pytest
from families.compare import check, check_rows
from families.models import FAMILIES
from families.serving import Checkpoints, Serving

pytestmark = pytest.mark.engine


def _marked(name: str, *values: str) -> object:
    return pytest.param(name, *values, marks=() if FAMILIES[name].every_run else pytest.mark.full)


EACH = [_marked(name, mode) for name, family in FAMILIES.items() for mode in family.modes]
DAMAGES = [
    _marked(name, mode, kind)
    for name, family in FAMILIES.items()
    for mode in family.modes
    for kind in family.damages(mode)
]


@pytest.mark.parametrize(("family", "mode"), EACH)
def test_same_as_vllms_own_moe(family: str, mode: str, serving: Serving) -> None:
    check(serving.own(family), serving.operator(family, mode).results["none"])


@pytest.mark.parametrize(("family", "mode"), EACH)
def test_same_as_transformers(family: str, mode: str, serving: Serving, family_checkpoints: Checkpoints) -> None:
    """vLLM's router and runner serve both of vLLM's engines; transformers shares no code with them."""
    found = serving.operator(family, mode).results["none"]["prompt"]
    check_rows(family_checkpoints.transformers[family], found)


@pytest.mark.parametrize(("family", "mode"), EACH)
def test_every_moe_layer_went_through_the_operator(family: str, mode: str, serving: Serving) -> None:
    layers, settings = serving.operator(family, mode).layers, FAMILIES[family].settings
    dense = settings.get("first_k_dense_replace", settings.get("moe_layer_start_index", 0))
    assert len(layers) == settings["num_hidden_layers"] - dense
    assert all(layer["calls"] > 0 for layer in layers)
    where = "fused" if FAMILIES[family].fused(mode) else "vllm" if FAMILIES[family].shared else "none"
    assert {layer["shared"] for layer in layers} == {where}


@pytest.mark.parametrize(("family", "mode", "kind"), DAMAGES)
def test_damage_is_seen(family: str, mode: str, kind: str, serving: Serving) -> None:
    """B45, B50, negative controls: the comparison of `test_same_as_vllms_own_moe` fails with each damage."""
    with pytest.raises(AssertionError, match="limit"):
        check(serving.own(family), serving.operator(family, mode).results[kind])
