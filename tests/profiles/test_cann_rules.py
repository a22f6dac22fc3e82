"""The profile's rules in the adapter: the operator's own package is not reached with what its product gets wrong."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from profiles.layers import DEMO, buffer_arguments, call_arguments, stacked
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.ops import SymmBuffer, facts, given, mega_moe, settings
from vllm_megamoe.ops.arguments import CALL, CREATE, CreateArguments
from vllm_megamoe.ops.cann import adapter
from vllm_megamoe.ops.settings import Settings, active_settings

FP8 = [torch.ones(1024, 1024).to(torch.float8_e4m3fn)]


class Group:
    """A communicator of two ranks."""

    group_name = "ep"

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


class Package:
    """Stands in for the operator's package: what reaches it."""

    def __init__(self) -> None:
        self.created: list[Any] = []
        self.calls = 0

    def create(self, group: Any, **arguments: Any) -> Any:
        window = {"ccl_buffer_size": 400 << 20, "group": group, "ep_world_size": group.size(), "topo_type": 0}
        self.created.append(SimpleNamespace(**arguments, **window))
        return self.created[-1]

    def run(self, **arguments: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return arguments["x"], arguments["topk_ids"]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    made = Package()
    names = [frozenset(argument.name for argument in table) for table in (CREATE, CALL)]
    monkeypatch.setattr(adapter, "installed", lambda: adapter.Installed(made.create, made.run, *names))
    monkeypatch.setattr(adapter, "make_communicator", lambda group: None)
    return made


def create(group: Group, kind: str = "a16w16", **changes: Any) -> SymmBuffer:
    said: dict[str, Any] = buffer_arguments(kind, DEMO) | changes
    return adapter.create(CreateArguments(group=group, **said), active_settings() or Settings())


def run(buffer: SymmBuffer, kind: str = "a16w16", **changes: Any) -> None:
    mega_moe(**call_arguments(kind, DEMO, 0) | changes, sym_buffer=buffer)


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
