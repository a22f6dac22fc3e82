"""Operands of one rank's layer in each use case, and its tokens: plain torch, random, of any size."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.layout import AclFormat, format_cast

INT4, FP4 = 285, 296
MODES: dict[str, tuple[int, Any]] = {
    "a16w16": (0, None),
    "a8w8-int": (2, torch.int8),
    "a8w4-int": (2, torch.int8),
    "a8w8-fp": (4, torch.float8_e4m3fn),
    "a8w4-fp": (4, torch.float8_e4m3fn),
}


@dataclass(frozen=True)
class Size:
    """Sizes of a layer on two ranks."""

    hidden: int = 1024
    intermediate: int = 1024
    experts: int = 4
    topk: int = 2
    tokens: int = 4


DEMO = Size()
LEGAL_91 = Size(hidden=4096, intermediate=512, experts=6, topk=6)
"""The smallest layer that 950 takes in 9.1.0 (torch_api.txt:455-458): N = 1024."""


def buffer_arguments(kind: str, size: Size) -> dict[str, Any]:
    mode, out = MODES[kind]
    return {
        "num_experts": size.experts,
        "num_max_tokens_per_rank": size.tokens,
        "num_topk": size.topk,
        "hidden": size.hidden,
        "intermediate_hidden": size.intermediate,
        "dispatch_quant_mode": mode,
        "dispatch_quant_out_dtype": out,
    }


def call_arguments(kind: str, size: Size, rank: int) -> dict[str, Any]:
    """All of a call but its buffer; new lists and tensors of tokens every time."""
    tokens = torch.Generator().manual_seed(100 + rank)
    shape = (size.tokens, size.topk)
    ids = torch.stack([torch.randperm(size.experts, generator=tokens)[: size.topk] for _ in range(size.tokens)])
    return _weights(kind, size, rank) | {
        "x": torch.randn(size.tokens, size.hidden, generator=tokens).to(torch.bfloat16),
        "topk_ids": ids.to(torch.int32),
        "topk_weights": torch.rand(shape, generator=tokens) + 0.1,
    }


@cache
def _weights(kind: str, size: Size, rank: int) -> dict[str, Any]:
    """Distinct experts on every rank."""
    g = torch.Generator().manual_seed(rank)
    count, wide = size.experts // 2, 2 * size.intermediate
    if kind == "a16w16":
        return {
            "l1_weights": [_normal(g, size.hidden, wide) for _ in range(count)],
            "l2_weights": [_normal(g, size.intermediate, size.hidden) for _ in range(count)],
        }
    if kind.endswith("int"):
        one = _integer(g, kind, size.hidden, wide, count)
        two = _integer(g, kind, size.intermediate, size.hidden, count)
        return {f"l1_{k}": v for k, v in one.items()} | {f"l2_{k}": v for k, v in two.items()} | _types(kind)
    one = _mx(g, kind, wide, size.hidden, count)
    two = _mx(g, kind, size.hidden, size.intermediate, count)
    return {f"l1_{k}": v for k, v in one.items()} | {f"l2_{k}": v for k, v in two.items()} | _types(kind)


def _types(kind: str) -> dict[str, int]:
    code = {"a8w4-int": INT4, "a8w4-fp": FP4}.get(kind)
    return {} if code is None else {"weight1_type": code, "weight2_type": code}


def _normal(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return (torch.randn(rows, columns, generator=g) / rows**0.5).to(torch.bfloat16)


def _integer(g: torch.Generator, kind: str, inputs: int, outputs: int, count: int) -> dict[str, list[Tensor]]:
    """int8, or two nibbles a byte; the bias of INT4 need not be the compensation, any number shows the same."""
    width = outputs // 2 if kind == "a8w4-int" else outputs
    made = [torch.randint(-127, 128, (inputs, width), generator=g, dtype=torch.int8) for _ in range(count)]
    scales = [torch.rand(outputs, generator=g) * 1e-4 + 1e-5 for _ in range(count)]
    lists = {
        "weights": [format_cast(weight, AclFormat.FRACTAL_NZ) for weight in made],
        "weights_sf": [scale.view(torch.int32).to(torch.int64) for scale in scales],
    }
    if kind == "a8w4-int":
        lists["bias"] = [torch.randn(outputs, generator=g) for _ in range(count)]
    return lists


def _mx(g: torch.Generator, kind: str, outputs: int, inputs: int, count: int) -> dict[str, list[Tensor]]:
    """E4M3, or packed E2M1 in blocks of 32, and scales about 1/32."""
    packed = 2 if kind == "a8w4-fp" else 1
    lists: dict[str, list[Tensor]] = {"weights": [], "weights_sf": []}
    for _ in range(count):
        codes = torch.randint(0, 256, (outputs, inputs // packed), generator=g, dtype=torch.uint8)
        if packed == 1:
            lists["weights"].append((codes & 0xBF).view(torch.float8_e4m3fn))
        else:
            lists["weights"].append(format_cast(codes, AclFormat.FRACTAL_NZ_C0_16))
        scales = torch.randint(120, 124, (outputs, -(-inputs // 64), 2), generator=g, dtype=torch.uint8)
        lists["weights_sf"].append(scales.view(torch.float8_e8m0fnu))
    return lists


def stacked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lists of plain tensors as stacks of one."""
    return {k: [_stack(v)] if isinstance(v, list) else v for k, v in arguments.items()}


def _stack(tensors: list[Tensor]) -> Tensor:
    return torch.stack([t.view(torch.uint8) for t in tensors]).view(tensors[0].dtype)
