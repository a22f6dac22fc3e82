"""The profile's rules in the adapter: the operator's own package is not reached with what its product gets wrong."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from profiles.layers import DEMO, call_arguments, stacked
from profiles.package import Group, Package, create, run
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops import facts, settings

FP8 = [torch.ones(1024, 1024).to(torch.float8_e4m3fn)]


def test_without_a_profile_everything_reaches_the_package(package: Package) -> None:
    buffer = create(Group())
    run(buffer, topk_weights=torch.ones(4, 2, dtype=torch.bfloat16))
    assert (len(package.created), package.calls) == (1, 1)


@pytest.mark.parametrize(
    ("name", "kind", "changes"),
    [
        ("a2@9.1", "a16w16", {}),
        ("a3@9.2", "a8w8-int", {}),
        ("a2@9.2", "a8w4-int", {}),
        ("950@9.2", "a8w8-fp", {}),
        ("950@9.2", "a8w4-fp", {"activation": "swigluoai", "activation_params": {"alpha": 1.702}}),
    ],
)
def test_legal_calls_reach_it(name: str, kind: str, changes: dict[str, Any], package: Package) -> None:
    with settings(profile=name):
        run(create(Group(), kind), kind, **changes)
    assert package.calls == 1


@pytest.mark.parametrize(
    ("name", "kind", "changes", "message"),
    [
        ("a2@9.1", "a16w16", {"topk_weights": torch.ones(4, 2).bfloat16()}, r"topk_weights\.dtype=BF16"),
        ("a2@9.2", "a16w16", {"x": torch.ones(4, 1024, dtype=torch.float16)}, r"x\.dtype=FLOAT16"),
        ("950@9.2", "a8w8-fp", {"activation_clamp": 0.0}, r"activation_clamp=0\.0"),
        ("950@9.2", "a8w8-fp", {"x_active_mask": torch.ones(4)}, "x_active_mask=a tensor"),
        ("a3@9.1", "a8w4-int", {}, "max_recv_token_num=0; expected at least 32"),
        ("a3@9.1", "a16w16", {"activation": "situglu"}, "activation='situglu'"),
        ("a3@9.1", "a16w16", {"scales": torch.ones(4, 32)}, "scales=given; expected nothing"),
        ("a3@9.2", "a16w16", {"l1_weights": []}, "l1_weights=no tensors; expected the experts of this rank"),
        ("a3@9.2", "a16w16", {"l2_weights": None}, "l2_weights=None; expected a list"),
        ("a3@9.2", "a16w16", {"l1_weights": [torch.ones(3)]}, "l1_weights=a 1-D tensor; expected a list of 2-D"),
        ("950@9.2", "a8w8-fp", {"shared_l1_weights": FP8}, "shared_l2_weights=no tensors"),
        ("950@9.2", "a8w8-fp", {"shared_l2_weights": FP8}, "shared_l1_weights=no tensors"),
        ("950@9.2", "a8w8-fp", {"shared_l1_bias": [torch.ones(2048)]}, "shared_l1_bias=given; expected None"),
        ("a3@9.2", "a16w16", {"l2_weights_sf": [torch.ones(1024)] * 2}, "l2_weights_sf=given; expected None"),
        ("a3@9.2", "a8w8-int", {"l2_weights_sf": None}, "l2_weights_sf=None; expected one scale tensor per"),
        ("a3@9.2", "a16w16", {"l1_bias": [torch.ones(2048)] * 2}, "l1_bias, l2_bias=given; expected None unless"),
        ("a2@9.2", "a8w4-int", {"l1_bias": None}, "l1_bias, l2_bias=None; expected the compensation"),
    ],
)
def test_rejected_before_it(name: str, kind: str, changes: dict[str, Any], message: str, package: Package) -> None:
    with settings(profile=name), pytest.raises(OperatorError, match=message):
        run(create(Group(), kind), kind, **changes)
    assert package.calls == 0


def test_the_buffers_width_is_the_weights(package: Package) -> None:
    with settings(profile="a3@9.2"):
        buffer = create(Group(), intermediate_hidden=512)
        with pytest.raises(OperatorError, match=r"intermediate_hidden=512; expected 0, I=1024 or 2I=2048"):
            run(buffer)
        for width in (0, 1024, 2048):
            buffer.intermediate_hidden = width
            run(buffer)
    assert package.calls == 3


def test_the_list_form_reaches_the_package_as_names(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    # the wrapper takes names only (op wrapper mega_moe.py, _normalize_activation_params)
    passed: dict[str, Any] = {}

    def keep(**arguments: Any) -> tuple[Tensor, Tensor]:
        passed.update(arguments)
        return arguments["x"], arguments["topk_ids"]

    monkeypatch.setattr(package, "run", keep)
    with settings(profile="950@9.2"):
        buffer = create(Group(), "a8w8-fp")
        run(buffer, "a8w8-fp", activation="swigluoai", activation_params=[7.0, 1.5, 0.5])
        assert (passed["activation_clamp"], passed["activation_params"]) == (7.0, {"alpha": 1.5, "beta": 0.5})
        run(buffer, "a8w8-fp", activation="swiglu", activation_params=[7.0])
        assert (passed["activation_clamp"], passed["activation_params"]) == (7.0, None)


def test_a_stack_on_a_product_that_takes_lists(package: Package) -> None:
    call = stacked(call_arguments("a16w16", DEMO, 0))
    weights = {name: call[name] for name in ("l1_weights", "l2_weights")}
    with settings(profile="a2@9.1"), pytest.raises(OperatorError, match="one 3-D stack of all experts"):
        run(create(Group()), **weights)


def test_a_second_buffer_on_a_950_communicator(package: Package) -> None:
    group = Group()
    with settings(profile="950@9.2"):
        create(group, "a8w8-fp")
        with pytest.raises(OperatorError, match="a communicator that 1 buffer"):
            create(group, "a8w8-fp")
        create(Group(), "a8w8-fp")
    assert len(package.created) == 2


@pytest.mark.parametrize("gone", ["destroyed", "forgotten", "held by an error"])
def test_layers_of_a_communicator_dispatch_alike(gone: str, package: Package) -> None:
    """As long as the first one lives: one that was destroyed, or that nobody uses any more, is in nobody's way."""
    group = Group()
    with settings(profile="a2@9.1"):
        first = create(group)
        with pytest.raises(OperatorError, match="dispatch_quant_mode=2; expected 0, as the first buffer"):
            create(group, "a8w8-int")
        if gone == "destroyed":
            first.destroy()
        elif gone == "forgotten":
            del first
        else:
            # a cycle, such as an error that its own frame holds, frees nothing until the collector comes by
            cycle: list[Any] = [first]
            cycle.append(cycle)
            del first, cycle
        create(group, "a8w8-int")


def test_the_communicator_says_its_topology(package: Package) -> None:
    with settings(profile="950@9.2"):
        buffer = create(Group(), "a8w8-fp")
        run(buffer, "a8w8-fp", activation="swigluoai")
        buffer.topo_type = 1
        with pytest.raises(OperatorError, match=r"activation=.swigluoai.; expected .* on URMA"):
            run(buffer, "a8w8-fp", activation="swigluoai")
    with settings(profile="950@9.2", topology="mte"):
        run(buffer, "a8w8-fp", activation="swigluoai")


def test_creation_while_the_stream_is_captured(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    with settings(profile="a3@9.2"):
        monkeypatch.setattr(torch, "npu", SimpleNamespace(is_current_stream_capturing=lambda: True), raising=False)
        with pytest.raises(OperatorError, match="while a graph is captured"):
            create(group)
        monkeypatch.setattr(torch, "npu", SimpleNamespace(is_current_stream_capturing=lambda: False))
        buffer = create(group)
        # a call, in contrast, may be captured
        monkeypatch.setattr(torch, "npu", SimpleNamespace(is_current_stream_capturing=lambda: True))
        run(buffer)
    assert package.calls == 1


def test_the_packages_window(package: Package) -> None:
    with settings(profile="a2@9.1"):
        buffer = create(Group())
        buffer.ccl_buffer_size = 1 << 20
        with pytest.raises(OperatorError, match=r"ccl_buffer_size=1048576; expected at least \d+ bytes"):
            run(buffer)


def test_a_call_outside_of_the_settings_follows_its_buffer(package: Package) -> None:
    """vLLM's layers make their buffer inside a `settings` block and call long after it."""
    with settings(profile="a3@9.2"):
        buffer = create(Group())
    run(buffer)
    with pytest.raises(OperatorError, match=r"topk_weights\.dtype=BF16"):
        run(buffer, topk_weights=torch.ones(4, 2, dtype=torch.bfloat16))
    with settings(profile="none"):
        run(buffer, topk_weights=torch.ones(4, 2, dtype=torch.bfloat16))
    assert package.calls == 2


def test_calls_alike_are_judged_once(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's calls differ in rows at most; the rules are plain Python between two launches."""
    judged = []
    whole = facts.broken_by_call
    monkeypatch.setattr(facts, "broken_by_call", lambda *of: judged.append(1) or whole(*of))
    facts.judge.cache_clear()
    params = {"alpha": 1.702}
    with settings(profile="950@9.2"):
        buffer = create(Group(), "a8w8-fp")
    for _ in range(3):
        run(buffer, "a8w8-fp", activation="swigluoai", activation_params=params)
    assert len(judged) == 1
    # A caller's mapping may change between two calls; the verdict on the old one is not taken for the new.
    params["alpha"] = float("inf")
    with pytest.raises(OperatorError, match="alpha"):
        run(buffer, "a8w8-fp", activation="swigluoai", activation_params=params)
    buffer.ccl_buffer_size = 1
    with pytest.raises(OperatorError, match="ccl_buffer_size=1"):
        run(buffer, "a8w8-fp", activation="swigluoai", activation_params={"alpha": 1.702})
    assert (len(judged), package.calls) == (3, 3)
