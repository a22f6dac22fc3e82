"""Weights on their way through the adapter: every entry is looked at, and once."""

from typing import Any

import pytest
import torch
from profiles.layers import DEMO, call_arguments
from profiles.package import Group, Package, create, run

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.ops import given, settings


def test_int4_in_int32_without_blocks(package: Package) -> None:
    # aclnn takes it for FRACTAL_NZ whatever it is
    call = call_arguments("a8w4-int", DEMO, 0)
    plain = {
        name: [format_cast(t, AclFormat.ND).contiguous().view(torch.int32) for t in call[name]]
        for name in ("l1_weights", "l2_weights")
    }
    types = {"weight1_type": None, "weight2_type": None}
    with settings(profile="a2@9.1"):
        buffer = create(Group(), "a8w4-int")
        with pytest.raises(OperatorError, match="ND and ND; expected FRACTAL_NZ"):
            run(buffer, "a8w4-int", **plain, **types)


MIXED: list[tuple[str, str, Any, str]] = [
    (
        "l1_weights",
        "blocks",
        lambda t: format_cast(t, AclFormat.ND),
        r"ND \[1024, 2048\] torch.int8; expected FRACTAL_NZ",
    ),
    ("l2_weights", "rows", lambda t: t.clone()[:512], r"\[512, 1024\] torch.int8; expected \w+ \[1024, 1024\]"),
    (
        "l2_weights",
        "dtype",
        lambda t: format_cast(t, AclFormat.ND).view(torch.int32),
        r"torch.int32; expected \w+ .*int8",
    ),
]


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize(("name", "what", "change", "words"), MIXED, ids=[what for _, what, *_ in MIXED])
def test_every_entry_of_a_list_is_looked_at(
    name: str, what: str, change: Any, words: str, place: int, package: Package
) -> None:
    """A2 and A3 read dtype and format of the first entry alone (op aclnn), and misread the others in silence."""
    call = call_arguments("a8w8-int", DEMO, 0)
    lists = {key: [*call[key]] * 2 for key in ("l1_weights", "l2_weights", "l1_weights_sf", "l2_weights_sf")}
    if what == "rows":
        lists[name] = [format_cast(t, AclFormat.ND) for t in lists[name]]
    lists[name][place] = change(lists[name][place])
    with settings(profile="a3@9.2"):
        buffer = create(Group(), "a8w8-int", num_experts=8)
        with pytest.raises(OperatorError, match=rf"^{name}\[{place}\]=.*{words}"):
            run(buffer, "a8w8-int", **lists)
    assert package.calls == 0


def test_weights_alike_are_read_once(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch_npu is asked for a tensor's format; a layer has hundreds of them, and its weights stay what they are."""
    asked = []
    whole = given.format_of
    monkeypatch.setattr(given, "format_of", lambda tensor: asked.append(1) or whole(tensor))
    call = call_arguments("a8w8-int", DEMO, 0)
    weights = {name: [t.clone() for t in call[name]] for name in ("l1_weights", "l2_weights")}
    with settings(profile="a3@9.2"):
        buffer = create(Group(), "a8w8-int")
        for _ in range(3):
            run(buffer, "a8w8-int", **weights)
        assert len(asked) == 4
        # another tensor in the list is another list
        weights["l1_weights"][1] = format_cast(weights["l1_weights"][1], AclFormat.ND)
        with pytest.raises(OperatorError, match=r"l1_weights\[1\]=ND"):
            run(buffer, "a8w8-int", **weights)
    assert package.calls == 3


def test_weights_the_other_way_round(package: Package) -> None:
    call = call_arguments("a8w8-fp", DEMO, 0)
    turned = [t.view(torch.uint8).t().contiguous().view(t.dtype) for t in call["l1_weights"]]
    with settings(profile="950@9.2"):
        buffer = create(Group(), "a8w8-fp")
        with pytest.raises(OperatorError, match=r"l1_weights=K=2048, N=1024; expected \[2 \* intermediate, hidden\]"):
            run(buffer, "a8w8-fp", l1_weights=turned)


@pytest.mark.parametrize("name", ["l1_weights_sf", "l2_weights_sf", "l1_bias", "l2_bias"])
@pytest.mark.parametrize("place", [0, 1])
def test_every_side_of_every_call_fits_its_weights(name: str, place: int, package: Package) -> None:
    """Of channel scales A2 and A3 look at the dimensions alone, and read missing ones from behind the tensor."""
    call = call_arguments("a8w4-int", DEMO, 0)
    with settings(profile="a3@9.2"):
        buffer = create(Group(), "a8w4-int")
        run(buffer, "a8w4-int", **call)
        entries = [*call[name]]
        entries[place] = entries[place][:512].clone()
        words = rf"{name}\.shape=\[512\]; expected \[{len(call[name][place])}\]"
        with pytest.raises(OperatorError, match=words):
            run(buffer, "a8w4-int", **call | {name: entries})
        run(buffer, "a8w4-int", **call)
    assert package.calls == 2


def test_shared_weights_the_other_way_round(package: Package) -> None:
    call = call_arguments("a8w8-fp", DEMO, 0)
    routed = ("l1_weights", "l2_weights", "l1_weights_sf", "l2_weights_sf")
    shared = {f"shared_{name}": call[name][:1] for name in routed}
    turned = [t.view(torch.uint8).t().contiguous().view(t.dtype) for t in shared["shared_l1_weights"]]
    with settings(profile="950@9.2"):
        buffer = create(Group(), "a8w8-fp")
        run(buffer, "a8w8-fp", **shared)
        with pytest.raises(
            OperatorError, match=r"shared_l1_weights=K=2048, N=1024; expected \[2 \* intermediate, hidden"
        ):
            run(buffer, "a8w8-fp", **shared | {"shared_l1_weights": turned})
    assert package.calls == 1
