"""Handles and the storage behind them: shared, complete, on one communicator, closed in order."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from layer.layers import ALONE, plan_of
from oracle.make import Shape, make_case

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer import buffers
from vllm_megamoe.layer.buffers import close_buffers, handles, open_handle
from vllm_megamoe.ops.settings import active_settings
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.padding import Padding
from vllm_megamoe.profiles.profile import find_profile


class Storage:
    """Stands for a SymmBuffer: remembers how it was asked for, and when it was destroyed."""

    destroyed: list["Storage"]

    def __init__(self, group: Any, *sizes: int, **arguments: Any) -> None:
        self.group, self.sizes, self.arguments = group, sizes, arguments
        self.settings = active_settings()

    def destroy(self) -> None:
        Storage.destroyed.append(self)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Storage]]:
    """Every storage that is made, in order."""
    close_buffers()
    Storage.destroyed = []
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


def test_layers_of_another_width_share(made: list[Storage]) -> None:
    """`intermediate_hidden` is recorded by the operator and used by nothing (op wrapper mega_moe.py)."""
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
    assert made[0].sizes == (4, 17, 3, 160, 96)
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
    for i in range(3):
        open_handle(f"layer {i}", plan(num_topk=i + 1), ALONE)
        open_handle(f"another {i}", plan(num_topk=i + 1), ALONE)
    close_buffers()
    close_buffers()
    assert Storage.destroyed == made
    assert handles() == ()


class Group:
    """As much of a process group as a key needs."""

    group_name = "ep"


def test_b23_950_rejects_a_second_configuration_on_a_communicator() -> None:
    seat = replace(ALONE, group=Group())
    other = find_profile("950@9.2")
    open_handle("model.layers.0", replace(plan(), profile=other), seat)
    open_handle("model.layers.1", replace(plan(), profile=other), seat)
    with pytest.raises(ConfigError, match=r"mtp.layers.0: its operator configuration .* differs from that of model"):
        open_handle("mtp.layers.0", replace(plan(num_experts=8), profile=other), seat)


def test_a_name_that_came_back_with_another_group_gets_storage_of_its_own(made: list[Storage]) -> None:
    """Another engine in the same process: its group has the old name, the old buffer the old group."""
    old, new = replace(ALONE, group=Group()), replace(ALONE, group=Group())
    first = open_handle("layer", plan(), old)
    second = open_handle("layer", plan(), new)
    assert first.buffer is not second.buffer
    assert [storage.group for storage in made] == [old.group, new.group]
    assert open_handle("another", plan(), new).buffer is second.buffer
