"""The package's own format: what a loader takes out of it are the bytes that a conversion of the source gives."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from cli import pairs
from cli.command import run
from safetensors.torch import load_file
from torch import Tensor

from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.stream import SHARD_OF, OwnStream, Shard
from vllm_megamoe.errors import CheckpointError, ConfigError, LayoutError
from vllm_megamoe.experts.canonical import DenseExperts
from vllm_megamoe.experts.convert import convert
from vllm_megamoe.experts.operands import ExpertOperands, LayerOperands
from vllm_megamoe.experts.slots import Slots
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.use_cases import UseCase

NAME, HIDDEN, WIDTH = "model.layers.1.mlp.experts", pairs.SHAPE.hidden, pairs.SHAPE.intermediate
PROJECTIONS: dict[Shard, str] = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def name_of(expert: int, shard: Shard) -> str:
    return f"{NAME}.{expert}.{PROJECTIONS[shard]}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[UseCase, Path]:
    """Use case -> what the original was converted to."""
    root = tmp_path_factory.mktemp("own")
    source = pairs.write(root / "source")
    for case in UseCase:
        assert run("convert", str(source), str(root / case.value), "--use-case", case.value).exit_code == 0
    return {case: root / case.value for case in UseCase}


def section_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


def straight(case: UseCase, stacked: bool = False) -> LayerOperands:
    """From the original's weights, without a file between."""
    w = pairs.originals()
    experts = []
    for e in range(pairs.SHAPE.experts):
        gate, up, down = (w[f"{NAME}.{e}.{projection}"] for projection in pairs.NAMES)
        experts.append(DenseExperts(torch.cat([gate, up])[None], down[None]))
    return convert(experts, case, stacked=stacked)


class Load:
    """A rank with some of the experts, and the layer's tensors as its file has them."""

    def __init__(self, folder: Path, ids: list[int], stacked: bool = False) -> None:
        self.own = own = OwnLayer.of_layer(section_of(folder), NAME)
        self.ids, self.tensors = ids, load_file(folder / "megamoe-experts-00001.safetensors")
        self.slots = Slots(own.use_case, len(ids), hidden=HIDDEN, intermediate_hidden=WIDTH, stacked=stacked)

        def finish(slot: int, held: Mapping[str, Tensor]) -> None:
            self.slots.put_operands(slot, own.operands_of(held, NAME), (HIDDEN, WIDTH))

        self.stream = OwnStream(NAME, own, HIDDEN, WIDTH, ids, name_of, finish)

    def run(self) -> LayerOperands:
        """In the file's order; then the loader writes into its own memory again."""
        for name, tensor in self.tensors.items():
            number, projection, part = name.removeprefix(f"{NAME}.").split(".")
            assert self.stream.take(SHARD_OF[projection], part, int(number), tensor) is (int(number) in self.ids)
        self.stream.settle()
        for tensor in self.tensors.values():
            tensor.view(torch.uint8).fill_(77)
        return self.slots.operands()


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("case", list(UseCase))
def test_loaded_operands_are_the_converted_ones(folders: dict[UseCase, Path], case: UseCase, stacked: bool) -> None:
    found, whole = Load(folders[case], [3, 1], stacked).run(), straight(case, stacked)
    for each in fields(ExpertOperands):
        mine, other = getattr(found, each.name), getattr(whole, each.name)
        assert (mine is None) is (other is None)
        for slot, expert in enumerate([3, 1] if mine is not None else []):
            assert torch.equal(_bytes(mine[slot]), _bytes(other[expert])), each.name
    alike = ("use_case", "hidden", "intermediate_hidden", "dispatch_quant_mode", "dispatch_quant_out_dtype")
    assert all(getattr(found, name) == getattr(whole, name) for name in (*alike, "weight_type"))


def _bytes(tensor: Tensor) -> Tensor:
    return inner(tensor).contiguous().reshape(-1).view(torch.uint8)


def test_loading_again_fills_the_memory_that_is_there(folders: dict[UseCase, Path]) -> None:
    load = Load(folders[UseCase.A8W8_INT], [0, 1, 2, 3])
    first = load.run()
    places = [inner(tensor).data_ptr() for tensor in first.l1]
    load.tensors = load_file(folders[UseCase.A8W8_INT] / "megamoe-experts-00001.safetensors")
    again = load.run()
    assert [inner(tensor).data_ptr() for tensor in again.l1] == places
    assert torch.equal(_bytes(again.l1[2]), _bytes(straight(UseCase.A8W8_INT).l1[2]))


def test_what_did_not_come_is_named(folders: dict[UseCase, Path]) -> None:
    load = Load(folders[UseCase.A8W4_INT], [0, 1])
    del load.tensors[f"{NAME}.1.down_proj.operand_offset"]
    with pytest.raises(CheckpointError, match=rf"{NAME}\.1\.down_proj\.operand_offset did not come"):
        load.run()


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t.float(), None])
def test_an_operand_of_another_kind_is_named(folders: dict[UseCase, Path], change: Any) -> None:
    own = OwnLayer.of_layer(section_of(folders[UseCase.A8W8_FP]), NAME)
    held = {name: tensor.clone() for name, tensor in own.tensors.items()}
    name = ".".join(PARTS["l2_sf"])
    if change is None:
        del held["l2_sf"]
    else:
        held["l2_sf"] = change(held["l2_sf"])
    with pytest.raises(CheckpointError, match=rf"x\.{name} is .*; expected"):
        own.operands_of(held, "x")


def test_sizes_of_the_operands_are_one(folders: dict[UseCase, Path]) -> None:
    load = Load(folders[UseCase.A16W16], [0, 1])
    load.slots.put_operands(0, load.own.template, (HIDDEN, WIDTH))
    with pytest.raises(LayoutError, match="expert 1 becomes operands"):
        load.slots.put_operands(1, load.own.template, (HIDDEN, 2 * WIDTH))


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"use_case": "a9", "element": "int8", "hidden": 8, "intermediate_hidden": 8},
        {"use_case": "a8w8-int", "element": "e4m3", "hidden": 8, "intermediate_hidden": 8},
        {"use_case": "a8w8-int", "element": "int8", "hidden": 0, "intermediate_hidden": 8},
        {"use_case": "a8w8-int", "element": "int8", "hidden": "8", "intermediate_hidden": 8},
    ],
)
def test_an_entry_that_says_nothing_is_refused(entry: object) -> None:
    with pytest.raises(ConfigError, match=r"quantization_config\.layers\['x'\]"):
        OwnLayer.listed({"version": 1, "layers": {"x": entry}}, "x")


def test_an_entry_is_found_by_each_name_of_its_layer() -> None:
    entry = {"use_case": "a8w8-int", "element": "int8", "hidden": 8, "intermediate_hidden": 8, "source": "bf16"}
    section = {"version": 1, "layers": {"model.language_model.layers.3.block_sparse_moe.experts": entry}}
    found = OwnLayer.of_layer(section, "language_model.model.layers.3.mlp.experts")
    assert found.entry() == entry
