"""A layer's tensors as a stream is given them: hidden 64, intermediate 32, experts 4 to 7 of 8.

Values tell where they come from: each tensor of each expert has numbers of its own, so an expert that was put together
from two others is seen.
"""

import random
from collections.abc import Mapping

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.table import STORED
from vllm_megamoe.checkpoint.stream import ExpertStream, Shard
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts

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
