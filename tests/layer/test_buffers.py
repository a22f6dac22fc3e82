"""Handles and the storage behind them: shared, complete, on one communicator, closed in order."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layer.layers import ALONE, plan_of, rows_of, state_of
from oracle.make import Shape, make_case
from torch import distributed as dist

from vllm_megamoe.errors import ConfigError, OperatorError
from vllm_megamoe.layer import buffers
from vllm_megamoe.layer.buffers import close_buffers, handles, open_handle
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe
from vllm_megamoe.ops.settings import active_settings
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.padding import Padding
from vllm_megamoe.profiles.profile import find_profile


class Storage:
    """Stands for a SymmBuffer: remembers how it was asked for, and when it was destroyed."""

    destroyed: list["Storage"]
    living: int
    limit: int
    """Most that may live at a time."""

    def __init__(self, group: Any, *sizes: int, **arguments: Any) -> None:
        Storage.living += 1
        assert Storage.living <= Storage.limit
        self.group, self.sizes, self.arguments = group, sizes, arguments
        self.settings = active_settings()

    def destroy(self) -> None:
        Storage.living -= 1
        Storage.destroyed.append(self)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Storage]]:
    """Every storage that is made, in order."""
    close_buffers()
    Storage.destroyed, Storage.living, Storage.limit = [], 0, 99
    found: list[Storage] = []

    def make(*args: Any, **kwargs: Any) -> Storage:
        found.append(Storage(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(buffers, "get_symm_buffer_for_mega_moe", make)
    yield found
    close_buffers()


def plan(**changes: Any) -> LayerPlan:
    whole = plan_of(make_case("a8w8-fp", Shape(hidden=96, intermediate=64)))
    return replace(whole, buffer=replace(whole.buffer, **changes))


def test_b13_many_layers_hold_one_storage(made: list[Storage]) -> None:
    opened = [open_handle(f"layer {i}", plan(), ALONE) for i in range(60)]
    assert len(made) == 1
    assert {id(handle.buffer) for handle in opened} == {id(made[0])}
    assert [handle.layer for handle in handles()] == [f"layer {i}" for i in range(60)]


def test_b12_every_configuration_gets_its_own(made: list[Storage]) -> None:
    """Not that of whichever layer came first."""
    first, other, again = (open_handle(n, p, ALONE) for n, p in (("a", plan()), ("b", plan(num_topk=2)), ("c", plan())))
    assert len(made) == 2
    assert (first.buffer is again.buffer, first.buffer is other.buffer) == (True, False)


@pytest.mark.parametrize(
    "change", [{"backend": "cpu"}, {"profile": find_profile("a3@9.2")}], ids=["backend", "profile"]
)
def test_a_buffer_is_one_backends_and_one_products(change: dict[str, Any], made: list[Storage]) -> None:
    first, other = open_handle("a", plan(), ALONE), open_handle("b", replace(plan(), **change), ALONE)
    assert plan() != replace(plan(), **change)
    assert first.buffer is not other.buffer
    assert made[0].settings != made[1].settings


def test_layers_of_another_width_share(made: list[Storage]) -> None:
    """The buffer's `intermediate_hidden` is 0, which goes with weights of any width (torch_api.txt, 950 example)."""
    wider = replace(plan(), padding=Padding(96, 128, 96, 128))
    assert open_handle("a", plan(), ALONE).buffer is open_handle("b", wider, ALONE).buffer


def test_every_argument_of_the_plan_reaches_the_operator(made: list[Storage]) -> None:
    expected = plan(
        num_experts=4,
        num_max_tokens_per_rank=17,
        num_topk=3,
        hidden=160,
        max_recv_token_num=29,
        combine_quant_mode=4,
        topk_weights_type=1,
        combine_comm_mode=1,
    )
    expected = replace(
        expected, padding=Padding(160, 96, 96, 64), profile=find_profile("950@9.2", "urma"), backend="cpu"
    )
    open_handle("layer", expected, ALONE)
    assert made[0].group is None
    assert made[0].sizes == (4, 17, 3, 160, 0)
    assert made[0].arguments == {
        "max_recv_token_num": 29,
        "dispatch_quant_mode": 4,
        "dispatch_quant_out_dtype": 256 + 36,
        "combine_quant_mode": 4,
        "topk_weights_type": 1,
        "combine_comm_mode": 1,
    }
    settings = made[0].settings
    assert settings is not None
    assert (settings.profile, settings.topology, settings.backend) == ("950@9.2", "urma", "cpu")


def test_storage_is_destroyed_once_in_order_of_creation(made: list[Storage]) -> None:
    kept = [open_handle(f"{name} {i}", plan(num_topk=i + 1), ALONE) for i in range(3) for name in ("layer", "another")]
    assert len(handles()) == 6
    close_buffers()
    close_buffers()
    assert Storage.destroyed == made
    assert len(made) == 3
    assert handles() == ()
    assert all(handle.buffer in made for handle in kept)


def test_after_closing_a_layer_gets_storage_of_its_own(made: list[Storage]) -> None:
    first = open_handle("layer", plan(), ALONE)
    close_buffers()
    second = open_handle("layer", plan(), ALONE)
    assert first.buffer is not second.buffer
    assert handles() == (second,)


def test_the_handle_of_a_layer_that_is_gone_is_gone(made: list[Storage]) -> None:
    """And its storage stays: another layer may use it, and ranks free their layers at different times."""
    opened = [open_handle(f"layer {i}", plan(), ALONE) for i in range(3)]
    del opened[1]
    assert [handle.layer for handle in handles()] == ["layer 0", "layer 2"]
    opened.clear()
    assert handles() == ()
    assert Storage.destroyed == []
    assert open_handle("later", plan(), ALONE).buffer is made[0]


class Group:
    """As much of a process group as a key needs."""

    group_name = "ep"


def test_b23_950_rejects_a_second_configuration_on_a_communicator() -> None:
    seat = replace(ALONE, group=Group())
    other = find_profile("950@9.2")
    kept = [open_handle(f"model.layers.{i}", replace(plan(), profile=other), seat) for i in range(2)]
    with pytest.raises(ConfigError, match=r"mtp.layers.0: its operator configuration .* differs from that of model"):
        open_handle("mtp.layers.0", replace(plan(num_experts=8), profile=other), seat)
    assert len(handles()) == len(kept)


def test_b23_holds_when_the_layer_that_made_the_storage_is_gone() -> None:
    """The buffer still lives on the communicator, and a second one would still break both."""
    seat, other = replace(ALONE, group=Group()), find_profile("950@9.2")
    open_handle("model.layers.0", replace(plan(), profile=other), seat)
    assert handles() == ()
    with pytest.raises(ConfigError, match=r"differs from that of model.layers.0"):
        open_handle("mtp.layers.0", replace(plan(num_experts=8), profile=other), seat)


def test_a_name_that_came_back_with_another_group_gets_storage_of_its_own(made: list[Storage]) -> None:
    """Another engine in the same process: its group has the old name, the old buffers the old group."""
    old, new = replace(ALONE, group=Group()), replace(ALONE, group=Group())
    before = [open_handle("layer", plan(), old), open_handle("mtp", plan(num_topk=2), old)]
    after = open_handle("layer", plan(), new)
    assert [storage.group for storage in made] == [old.group, old.group, new.group]
    assert Storage.destroyed == made[:2]
    assert handles() == (after,)
    assert open_handle("another", plan(), new).buffer is after.buffer
    close_buffers()
    assert Storage.destroyed == made
    del before


def test_a_replaced_950_buffer_is_destroyed_before_the_next_one_is_made(made: list[Storage]) -> None:
    """A second allocation beside a live one is unusable (op csrc, comm_context)."""
    profile = find_profile("950@9.1")
    open_handle("layer", replace(plan(), profile=profile), replace(ALONE, group=Group()))
    Storage.limit = 1
    open_handle("layer", replace(plan(num_topk=2), profile=profile), replace(ALONE, group=Group()))
    assert Storage.destroyed == made[:1]


@pytest.fixture
def torch_groups(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank, so that torch's own register of groups is there."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("torch_groups")
def test_storage_of_a_group_that_torch_destroyed_goes_with_it(made: list[Storage]) -> None:
    """The next engine's group has another name, so nothing would ever replace the old buffer."""
    groups = [dist.new_group([0]) for _ in range(3)]
    seats = [replace(ALONE, group=group) for group in groups]
    opened = [open_handle(f"layer {i}", plan(), seat) for i, seat in enumerate(seats)]
    dist.destroy_process_group(groups[1])
    assert Storage.destroyed == []
    again = open_handle("layer 0 again", plan(), seats[0])
    assert Storage.destroyed == [made[1]]
    assert [handle.layer for handle in handles()] == ["layer 0", "layer 2", "layer 0 again"]
    assert again.buffer is made[0]
    del opened


@pytest.mark.usefixtures("torch_groups")
def test_real_storage_that_was_replaced_rejects_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own buffer, not a stand-in."""
    monkeypatch.setattr(buffers, "get_symm_buffer_for_mega_moe", get_symm_buffer_for_mega_moe)
    case = make_case("a8w8-fp", Shape(hidden=96, intermediate=64))
    groups = [dist.new_group([0]) for _ in range(2)]
    old, new = (state_of(case, 0, plan_of(case), seat=replace(ALONE, group=group)) for group in groups)
    assert old.run(*rows_of(case, 0)).equal(new.run(*rows_of(case, 0)))
    dist.destroy_process_group(groups[0])
    third = state_of(case, 0, plan_of(case), seat=replace(ALONE, group=groups[1]))
    assert third.buffer is new.buffer
    with pytest.raises(OperatorError, match="sym_buffer=a destroyed buffer; expected a live one"):
        old.run(*rows_of(case, 0))
    third.run(*rows_of(case, 0))
