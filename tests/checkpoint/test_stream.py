"""A layer's experts as tensors arrive, in any order, in part, twice, for other ranks, and again."""

import pytest
import torch
from checkpoint.arrivals import EXPERTS, HIDDEN, NAMES, WIDTH, Layer, bf16, check_bf16, int8, mxfp4, shuffled
from torch import Tensor

from vllm_megamoe.checkpoint.stream import Shard
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, MxExperts


def test_every_order_gives_the_same_experts() -> None:
    for tensors in (bf16(), shuffled(bf16())):
        layer = Layer("bf16")
        layer.give(tensors)
        layer.stream.settle()
        check_bf16(layer.found, tensors)


def test_codes_and_scales_arrive_apart() -> None:
    tensors = mxfp4()
    layer = Layer("msmodelslim-w4a8-mxfp")
    layer.give(shuffled(tensors))
    layer.stream.settle()
    for slot, e in enumerate(EXPERTS):
        experts = layer.found[slot]
        assert isinstance(experts, MxExperts)
        assert experts.w13[0].equal(torch.cat([tensors[e, "w1", "weight"], tensors[e, "w3", "weight"]]))
        assert experts.w2_scale[0].equal(tensors[e, "w2", "weight_scale"])


def test_an_expert_is_handed_on_with_its_last_tensor() -> None:
    """And what it was read from is dropped, so that a layer never lies in memory twice."""
    layer, handed = Layer("bf16"), []
    for i, (key, tensor) in enumerate(bf16().items(), 1):
        layer.give({key: tensor})
        handed.append(len(layer.order))
        assert handed[-1] == i // 3
        assert len(layer.stream._held) == (i % 3 != 0)


def test_other_ranks_experts_are_not_looked_at() -> None:
    """A tensor on the meta device has no bytes: reading them would fail."""
    layer = Layer("bf16")
    for expert in (0, 3, 8, 100):
        assert not layer.stream.take("w1", "weight", expert, torch.empty(1, device="meta"))
    layer.give(bf16())
    layer.stream.settle()
    assert layer.order == [0, 1, 2, 3]


def test_missing_tensors_are_named_with_their_number() -> None:
    tensors = {key: t for key, t in bf16().items() if key[0] != 5 and key[:2] != (6, "w3")}
    layer = Layer("bf16")
    layer.give(tensors)
    with pytest.raises(CheckpointError) as said:
        layer.stream.settle()
    assert str(said.value) == (
        "layer: layer.5.gate_proj.weight, layer.5.down_proj.weight, layer.5.up_proj.weight, layer.6.up_proj.weight did "
        "not come; 2 of 4 experts of this rank are whole, expected all. Copy the checkpoint anew; its index must list "
        "every file."
    )
    nothing = Layer("bf16")
    assert not nothing.stream.started
    with pytest.raises(CheckpointError, match=r"layer.4.gate_proj.weight, .* and 8 more did not come; 0 of 4 experts"):
        nothing.stream.settle()


@pytest.mark.parametrize("late", [False, True], ids=["before its expert is whole", "after"])
def test_a_tensor_that_comes_twice_is_named(late: bool) -> None:
    tensors = bf16()
    layer = Layer("bf16")
    layer.give({key: t for key, t in tensors.items() if late or key == (4, "w1", "weight")})
    with pytest.raises(CheckpointError, match=r"^layer.4.gate_proj.weight came twice; expected it once\. "):
        layer.give({(4, "w1", "weight"): tensors[4, "w1", "weight"]})


@pytest.mark.parametrize(
    ("key", "wrong", "words"),
    [
        ((5, "w1", "weight"), torch.zeros(WIDTH, HIDDEN, dtype=torch.uint8), "has dtype uint8; expected int8"),
        (
            (5, "w2", "weight"),
            torch.zeros(WIDTH, HIDDEN, dtype=torch.int8),
            r"has shape \[32, 64\]; expected \[64, 32\]",
        ),
        ((5, "w3", "weight_scale"), torch.full((WIDTH, 1), torch.nan), r"is nan at \[0, 0\]"),
        ((5, "w3", "weight_offset"), torch.ones(WIDTH, 1), r"is 1.0 at \[0, 0\]; expected 0 everywhere"),
    ],
)
def test_a_wrong_tensor_is_named_and_its_expert_stays_out(
    key: tuple[int, Shard, str], wrong: Tensor, words: str
) -> None:
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.give(int8(offset=0.0) | {key: wrong})
    with pytest.raises(CheckpointError, match=rf"^layer\.5\.{NAMES[key[1]]}\.{key[2]} {words}"):
        layer.stream.settle()
    assert 1 not in layer.found


@pytest.fixture
def loaded() -> Layer:
    """A layer after its first load."""
    layer = Layer("bf16")
    layer.give(bf16())
    layer.stream.settle()
    return layer


def test_loading_again_once_or_twice(loaded: Layer) -> None:
    for _ in range(2):
        again = bf16(seed=5)
        loaded.give(again)
        loaded.stream.settle()
        check_bf16(loaded.found, again)


def test_one_expert_alone_may_be_loaded_again(loaded: Layer) -> None:
    tensors = {key: t for key, t in bf16(seed=5).items() if key[0] == 6}
    loaded.give(tensors)
    loaded.stream.settle()
    check_bf16(loaded.found, bf16() | tensors)


def test_an_expert_may_be_loaded_in_two_calls(loaded: Layer) -> None:
    again = bf16(seed=5)
    loaded.give({key: t for key, t in again.items() if key[:2] != (6, "w2")})
    loaded.give({(6, "w2", "weight"): again[6, "w2", "weight"]})
    loaded.stream.settle()
    check_bf16(loaded.found, again)


def test_half_an_expert_is_named_before_the_next_step_and_comes_anew_as_a_whole(loaded: Layer) -> None:
    """In any order: its halves of two loads never meet."""
    again = bf16(seed=5)
    loaded.give({key: t for key, t in again.items() if key[:2] != (6, "w2")})
    for _ in range(2):  # a step that is tried again is refused again
        with pytest.raises(CheckpointError, match=r"^layer: 1 experts were loaded again in part: layer\.6\.down_proj"):
            loaded.stream.settle()
    last = bf16(seed=6)
    for key in reversed(last):
        loaded.give({key: last[key]})
    loaded.stream.settle()
    check_bf16(loaded.found, last)


def test_a_load_that_broke_can_be_repeated(loaded: Layer) -> None:
    again = bf16(seed=5)
    with pytest.raises(CheckpointError, match=r"layer\.5\.down_proj\.weight has shape"):
        loaded.give(again | {(5, "w2", "weight"): torch.zeros(1, 1, dtype=torch.bfloat16)})
    with pytest.raises(CheckpointError, match=r"layer\.5\.down_proj\.weight has shape"):
        loaded.stream.settle()
    loaded.give(again)
    loaded.stream.settle()
    check_bf16(loaded.found, again)


def test_tensors_from_a_buffer_that_is_used_again_are_copied(loaded: Layer) -> None:
    """As a trainer sends them: one bucket of memory, written anew for each tensor."""
    loaded.stream.copies = True
    again, bucket = bf16(seed=5), torch.empty(HIDDEN * WIDTH, dtype=torch.bfloat16)
    for key, tensor in again.items():
        loaded.give({key: bucket.copy_(tensor.flatten()).view(tensor.shape)})
        if key[1] == "w3":
            slot = key[0] - EXPERTS[0]
            experts = loaded.found[slot]
            assert isinstance(experts, DenseExperts)
            loaded.found[slot] = DenseExperts(experts.w13.clone(), experts.w2.clone())
    loaded.stream.settle()
    check_bf16(loaded.found, again)


def test_tensors_that_ask_for_gradients_leave_none(loaded: Layer) -> None:
    loaded.give({key: t.requires_grad_() for key, t in bf16(seed=5).items()})
    loaded.stream.settle()
    assert not any(experts.w13.requires_grad or experts.w2.requires_grad for experts in loaded.found.values())
