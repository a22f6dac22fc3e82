"""A layer's experts as tensors arrive, in any order, in part, twice, for other ranks, and again.

Sizes: hidden 64, intermediate 32, experts 4 to 7 of 8. Values tell where they come from: each tensor of each expert has
numbers of its own, so an expert that was put together from two others is seen.
"""

import random
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.table import STORED
from vllm_megamoe.checkpoint.stream import ExpertStream, Shard
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts

HIDDEN, WIDTH, EXPERTS = 64, 32, range(4, 8)
NAMES: dict[Shard, str] = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
SHAPES: dict[Shard, tuple[int, int]] = {"w1": (WIDTH, HIDDEN), "w2": (HIDDEN, WIDTH), "w3": (WIDTH, HIDDEN)}
Tensors = dict[tuple[int, Shard, str], Tensor]
"""By expert, projection and part."""


def _name(expert: int, shard: Shard) -> str:
    return f"layer.{expert}.{NAMES[shard]}"


class Layer:
    """A stream whose experts are kept as they were handed on."""

    def __init__(self, format_name: str) -> None:
        self.found: dict[int, Experts] = {}
        self.order: list[int] = []
        self.stream = ExpertStream(
            "layer", STORED[format_name], HIDDEN, WIDTH, list(EXPERTS), _name, finish=self._finish
        )

    def _finish(self, slot: int, experts: Experts) -> None:
        self.found[slot] = experts
        self.order.append(slot)

    def give(self, tensors: Mapping[tuple[int, Shard, str], Tensor]) -> None:
        for (expert, shard, part), tensor in tensors.items():
            assert self.stream.take(shard, part, expert, tensor)


def bf16(seed: int = 0) -> Tensors:
    g = torch.Generator().manual_seed(seed)
    return {
        (e, shard, "weight"): torch.randn(shape, generator=g).to(torch.bfloat16)
        for e in EXPERTS
        for shard, shape in SHAPES.items()
    }


def int8(offset: float | None = None, seed: int = 0) -> Tensors:
    """msModelSlim W8A8_DYNAMIC, with or without the offsets that its tool writes."""
    g = torch.Generator().manual_seed(seed)
    made: Tensors = {}
    for e in EXPERTS:
        for shard, (rows, columns) in SHAPES.items():
            made[e, shard, "weight"] = torch.randint(-127, 128, (rows, columns), generator=g, dtype=torch.int8)
            made[e, shard, "weight_scale"] = torch.rand((rows, 1), generator=g) + 0.5
            if offset is not None:
                made[e, shard, "weight_offset"] = torch.full((rows, 1), offset)
    return made


def mxfp4() -> Tensors:
    g = torch.Generator().manual_seed(1)
    made: Tensors = {}
    for e in EXPERTS:
        for shard, (rows, columns) in SHAPES.items():
            made[e, shard, "weight"] = torch.randint(0, 256, (rows, columns // 2), generator=g, dtype=torch.uint8)
            scale = torch.randint(100, 140, (rows, columns // 32), generator=g, dtype=torch.uint8)
            made[e, shard, "weight_scale"] = scale
    return made


def shuffled(tensors: Tensors) -> Tensors:
    keys = list(tensors)
    random.Random(3).shuffle(keys)
    return {key: tensors[key] for key in keys}


def check_bf16(found: Mapping[int, Experts], tensors: Tensors) -> None:
    for slot, e in enumerate(EXPERTS):
        experts = found[slot]
        assert isinstance(experts, DenseExperts)
        assert experts.w13[0].equal(torch.cat([tensors[e, "w1", "weight"], tensors[e, "w3", "weight"]]))
        assert experts.w2[0].equal(tensors[e, "w2", "weight"])


def check_int8(found: Mapping[int, Experts], tensors: Tensors) -> None:
    for slot, e in enumerate(EXPERTS):
        experts = found[slot]
        assert isinstance(experts, IntExperts)
        for shard, codes, scale in (("w13", experts.w13, experts.w13_scale), ("w2", experts.w2, experts.w2_scale)):
            of: list[Shard] = ["w1", "w3"] if shard == "w13" else ["w2"]
            assert codes[0].equal(torch.cat([tensors[e, s, "weight"] for s in of]))
            assert scale[0].equal(torch.cat([tensors[e, s, "weight_scale"][:, 0] for s in of]))


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


def test_optional_parts_are_known_when_the_first_load_is_over() -> None:
    """With offsets or without: nothing is read before, and from then on an expert is read with its last tensor."""
    for tensors in (int8(), int8(offset=0.0)):
        layer = Layer("msmodelslim-w8a8-dynamic")
        layer.give(tensors)
        assert layer.order == []
        layer.stream.settle()
        check_int8(layer.found, tensors)
        again = int8(offset=0.0 if (4, "w1", "weight_offset") in tensors else None, seed=1)
        layer.give(again)
        assert layer.order == [0, 1, 2, 3] * 2
        layer.stream.settle()
        check_int8(layer.found, again)


def test_an_optional_part_that_one_expert_lacks_is_missing() -> None:
    """Without its zero points an expert would be read as another one."""
    tensors = {key: t for key, t in int8(offset=0.0).items() if key != (6, "w2", "weight_offset")}
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.give(tensors)
    with pytest.raises(CheckpointError, match=r"^layer: layer.6.down_proj.weight_offset did not come; 3 of 4 experts"):
        layer.stream.settle()


def test_told_its_optional_parts_a_stream_reads_each_expert_at_once() -> None:
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.stream.expect(dict.fromkeys(SHAPES, frozenset({"weight_offset"})))
    for i, (key, tensor) in enumerate(int8(offset=0.0).items(), 1):
        layer.give({key: tensor})
        assert len(layer.order) == i // 9


def test_names_that_only_the_files_have_are_not_waited_for() -> None:
    """A model may rename a part, or keep one to itself: then all is read at the end, as if nobody had looked."""
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.stream.expect(dict.fromkeys(SHAPES, frozenset({"weight", "scale"})))
    tensors = int8()
    layer.give(tensors)
    assert layer.order == [0, 1, 2, 3]
    layer.stream.settle()
    check_int8(layer.found, tensors)
    kept_back = Layer("msmodelslim-w8a8-dynamic")
    kept_back.stream.expect(dict.fromkeys(SHAPES, frozenset({"weight_offset"})))
    kept_back.give(tensors)
    assert kept_back.order == []
    kept_back.stream.settle()
    check_int8(kept_back.found, tensors)


def test_a_part_that_the_last_expert_lacks_is_missing_though_others_were_read() -> None:
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.stream.expect(dict.fromkeys(SHAPES, frozenset({"weight_offset"})))
    layer.give({key: t for key, t in int8(offset=0.0).items() if key[0] != 7 or key[2] != "weight_offset"})
    with pytest.raises(CheckpointError, match=r"^layer: layer\.7\.gate_proj\.weight_offset, .* did not come; 3 of 4"):
        layer.stream.settle()


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
