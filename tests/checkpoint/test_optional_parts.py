"""Parts of a format that are there or not: known from headers, or when the first load is over."""

import pytest
from checkpoint.arrivals import NAMES, Layer, check_int8, int8

from vllm_megamoe.errors import CheckpointError


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
    layer.stream.expect(dict.fromkeys(NAMES.values(), frozenset({"weight_offset"})))
    for i, (key, tensor) in enumerate(int8(offset=0.0).items(), 1):
        layer.give({key: tensor})
        assert len(layer.order) == i // 9


def test_names_that_only_the_files_have_are_not_waited_for() -> None:
    """A model may rename a part, or keep one to itself: then all is read at the end, as if nobody had looked."""
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.stream.expect(dict.fromkeys(NAMES.values(), frozenset({"weight", "scale"})))
    tensors = int8()
    layer.give(tensors)
    assert layer.order == [0, 1, 2, 3]
    layer.stream.settle()
    check_int8(layer.found, tensors)
    kept_back = Layer("msmodelslim-w8a8-dynamic")
    kept_back.stream.expect(dict.fromkeys(NAMES.values(), frozenset({"weight_offset"})))
    kept_back.give(tensors)
    assert kept_back.order == []
    kept_back.stream.settle()
    check_int8(kept_back.found, tensors)


def test_a_part_that_the_last_expert_lacks_is_missing_though_others_were_read() -> None:
    layer = Layer("msmodelslim-w8a8-dynamic")
    layer.stream.expect(dict.fromkeys(NAMES.values(), frozenset({"weight_offset"})))
    layer.give({key: t for key, t in int8(offset=0.0).items() if key[0] != 7 or key[2] != "weight_offset"})
    with pytest.raises(CheckpointError, match=r"^layer: layer\.7\.gate_proj\.weight_offset, .* did not come; 3 of 4"):
        layer.stream.settle()
