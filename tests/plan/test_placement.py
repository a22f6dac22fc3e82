"""Placement files: what is taken, what is rejected, and what a written one does to measured load."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.placement import balanced, imbalance, placed, placement_of, read_rows, write_placement
from vllm_megamoe.plan.plan import draft_plan, make_plan, violations_of

FORMAT = "megamoe expert placement 1"
LAYERS = [MoeFacts(f"model.layers.{i}.mlp.experts", 4, 2, 1024, 1024, index=i) for i in range(2)]
FIRST, SECOND = (layer.name for layer in LAYERS)
TWO = EngineFacts("bfloat16", tensor_parallel=2, expert_parallel=True)


def write(folder: Path, layers: object, form: str = FORMAT) -> str:
    file = folder / "placement.json"
    file.write_text(json.dumps({"format": form, "layers": layers}))
    return str(file)


def test_a_placement_makes_redundant_slots_of_every_layer(tmp_path: Path) -> None:
    file = write(tmp_path, {FIRST: [3, 0, 2, 1, 0, 2], SECOND: [0, 1, 2, 3, 0, 1]})
    layers, wrong = placed(LAYERS, file, 2)
    assert wrong == []
    assert [layer.slots for layer in layers] == [(3, 0, 2, 1, 0, 2), (0, 1, 2, 3, 0, 1)]
    plan = make_plan(TWO, layers, Options(expert_placement=file))
    assert [layer.experts_per_rank for layer in plan.layers] == [3, 3]
    assert {buffer.num_experts for buffer in plan.buffers} == {6}
    assert plan.layers[0].slots_of(1) == [1, 0, 2]
    alone = make_plan(TWO, LAYERS, Options())
    assert plan.layers[0].weight_bytes * 2 == alone.layers[0].weight_bytes * 3


def test_a_layer_that_is_left_out_stays_in_order(tmp_path: Path) -> None:
    layers, wrong = placed(LAYERS, write(tmp_path, {SECOND: [3, 0, 2, 1]}), 2)
    assert ([layer.slots for layer in layers], wrong) == ([(), (3, 0, 2, 1)], [])


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({FIRST: [0, 1, 2, 0]}, f"{FIRST}: experts 3 stand nowhere; expected each of 4 in a slot. Add them."),
        ({FIRST: [0, 1, 2, 4]}, f"{FIRST}: expert 4 in a slot; expected experts from 0 to 3. Correct it."),
        ({FIRST: [0, 1, 2, 3, 0]}, f"{FIRST}: 5 slots on 2 ranks; expected the same number on every rank."),
        ({FIRST: [0, 1, 0, 2, 3, 1]}, f"{FIRST}: expert 0 twice on rank 0; expected its copies on different ranks."),
        ({FIRST: [0, 1, 2, 3, 0, 1]}, f"{SECOND} has 4 slots, other layers have 6; expected the same in all layers"),
        ({"model.layers.7.mlp.experts": [0, 1, 2, 3]}, "model.layers.7.mlp.experts is no MoE layer of this model"),
        ({FIRST: [0, 1, 2, "3"]}, f"{FIRST} is [0, 1, 2, '3']; expected a list of expert numbers. Correct it."),
        ({FIRST: 3}, f"{FIRST} is 3; expected a list of expert numbers. Correct it."),
    ],
)
def test_what_is_wrong_is_named_with_its_layer(tmp_path: Path, layers: object, said: str) -> None:
    found, wrong = placed(LAYERS, write(tmp_path, layers), 2)
    assert said in wrong[0]
    assert wrong[0].startswith(str(tmp_path))
    assert found == LAYERS


def test_a_file_of_another_kind_is_rejected(tmp_path: Path) -> None:
    (sentence,) = placed(LAYERS, write(tmp_path, {}, "megamoe expert load 1"), 2)[1]
    assert """has "format" 'megamoe expert load 1'; expected 'megamoe expert placement 1'""" in sentence
    (sentence,) = placed(LAYERS, str(tmp_path / "absent.json"), 2)[1]
    assert "absent.json cannot be read: " in sentence


def test_a_products_limit_is_that_of_physical_experts() -> None:
    """A3 at 9.1 takes 1024 experts; 1008 and 32 redundant ones are more."""
    experts = 1008
    slots = (*range(experts), *range(16), *range(100, 116))
    layer = MoeFacts(FIRST, experts, 8, 1024, 1024, slots=slots)
    engine = EngineFacts("bfloat16", tensor_parallel=16, expert_parallel=True)
    said = " ".join(map(str, violations_of(draft_plan(engine, [layer], Options(profile="a3@9.1")))))
    assert "1040" in said
    assert "1024" in said


def test_copies_of_the_fullest_share_its_rows() -> None:
    """Expert 0 has half of all rows. In order, rank 0 has 70 of 100; with a copy on each rank 52 at most."""
    rows = [50, 20, 20, 10]
    slots = balanced(rows, 2, 2)
    assert imbalance(rows, range(4), 2) == 1.4
    assert Counter(slots)[0] == 2
    assert imbalance(rows, slots, 2) <= 1.1


def test_drawn_loads_are_placed_whole_and_never_worse_than_in_order() -> None:
    rng = random.Random(5)
    for _ in range(200):
        ranks = rng.choice([1, 2, 4, 8])
        experts = ranks * rng.randint(1, 16)
        redundant = ranks * rng.randint(0, min(3, experts - experts // ranks)) if ranks > 1 else 0
        rows = [int(1000 * rng.random() ** 6) for _ in range(experts)]
        if redundant > experts * ranks - experts:
            continue
        slots = balanced(rows, ranks, redundant)
        assert len(slots) == experts + redundant
        assert set(slots) == set(range(experts))
        each = len(slots) // ranks
        assert all(len(set(slots[r * each : (r + 1) * each])) == each for r in range(ranks))
        # The fullest rank: a mean's share, and at most one more expert's copy.
        share = max((count / slots.count(e) for e, count in enumerate(rows)), default=0)
        assert imbalance(rows, slots, ranks) * sum(rows) / ranks <= sum(rows) / ranks + share * each


def test_wrong_numbers_of_redundant_experts_are_answered_with_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"8 experts and 3 redundant ones on 2 ranks; .* Take 0 or 2 redundant ones"):
        balanced([1] * 8, 2, 3)
    with pytest.raises(ConfigError, match="an expert once on a rank at most"):
        balanced([1] * 2, 2, 4)


def test_a_written_placement_is_read_as_it_was_meant(tmp_path: Path) -> None:
    load = tmp_path / "load.json"
    rows = {FIRST: [50, 20, 20, 10], SECOND: [1, 1, 1, 1]}
    content = {"format": "megamoe expert load 1", "layers": {name: {"rows": own} for name, own in rows.items()}}
    load.write_text(json.dumps(content))
    slots = placement_of(read_rows(str(load)), LAYERS, 2, 2)
    write_placement(tmp_path / "placement.json", slots)
    layers, wrong = placed(LAYERS, str(tmp_path / "placement.json"), 2)
    assert wrong == []
    assert {layer.name: layer.slots for layer in layers} == slots


def test_a_load_of_nothing_or_of_another_model_is_rejected(tmp_path: Path) -> None:
    load = tmp_path / "load.json"
    load.write_text(json.dumps({"format": "megamoe expert load 1", "layers": {FIRST: {"rows": [0, 0]}}}))
    with pytest.raises(ConfigError, match="has counted no rows"):
        read_rows(str(load))
    with pytest.raises(ConfigError, match=f"{SECOND} is not in the load file; expected 4"):
        placement_of({FIRST: [1, 2, 3, 4]}, LAYERS, 2, 0)
    with pytest.raises(ConfigError, match=f"{FIRST} has 2 experts in the load file; expected 4"):
        placement_of({FIRST: [1, 2]}, LAYERS, 2, 0)
