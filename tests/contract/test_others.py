"""Layers without experts are vllm-ascend's own, whatever the checkpoint: same classes, attributes and answers."""

from typing import Any

import pytest

KINDS = {"a3@9.2": ("BF16", "W8A8_DYNAMIC", "compressed-tensors"), "950@9.2": ("W8A8_MXFP8", "fp8")}
EVERY = [(product, kind) for product, kinds in KINDS.items() for kind in kinds]
LINEARS = ("qkv", "o")


@pytest.fixture(scope="module")
def ranks() -> Any:
    from contract.support.launch import run

    found: dict[str, list[dict[str, Any]]] = {}

    def of(product: str, kind: str) -> list[dict[str, Any]]:
        if product not in found:
            found[product] = run(product, ["others"], ranks=2)["others"]
        return [answer[kind] for answer in found[product]]

    return of


@pytest.mark.parametrize(("product", "kind"), EVERY)
def test_layers_are_the_same(product: str, kind: str, ranks: Any) -> None:
    for answer in ranks(product, kind):
        for name, theirs in answer["theirs"]["layers"].items():
            ours = answer["ours"]["layers"][name]
            assert ours["classes"] == theirs["classes"]
            assert ours == theirs, name
            if name in LINEARS:
                assert all("vllm_ascend" in each for each in theirs["classes"][:2])


@pytest.mark.parametrize(("product", "kind"), [each for each in EVERY if each[1] != "BF16"])
def test_the_config_answers_as_theirs(product: str, kind: str, ranks: Any) -> None:
    for answer in ranks(product, kind):
        assert answer["ours"]["answers"] == answer["theirs"]["answers"]


def test_without_a_quantisation_nothing_is_on(ranks: Any) -> None:
    """Theirs is no config at all then; ours says of everything that it is off."""
    for answer in ranks("a3@9.2", "BF16"):
        assert answer["theirs"]["answers"] == {}
        ours = answer["ours"]["answers"]
        assert not any(ours[name] for name in ours if name.startswith("enable_") or name.endswith("_layers"))
        assert ours["quant_description"] == {}
        assert ours["get_name"] == "megamoe"
