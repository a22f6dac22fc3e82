"""The four examples of the documents, run from the documents' own text with only device lines and sizes changed.

Sums over 1024 to 4096 numbers in fp32 are bounded by likelihood (see the oracle's gemm). The int4 example is wrong by
its packing (x + 8, which the int4 multiplier reads as another number), and right once packed in two's complement.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ops.calls import as_got
from ops.compare import compare_rank
from ops.examples import (
    A2_A3_DEVICE_LINES,
    A5_DEVICE_LINES,
    Change,
    changed,
    free_port,
    read_records,
    run_function,
    run_script,
    sources,
)
from oracle.case import Case, Dense, Experts, Integer, Mx, Rank
from oracle.operator import expected
from torch import Tensor

from vllm_megamoe.testing.ranks import World

Record = dict[str, Any]

# legal sizes of A2/A3: hidden and intermediate_hidden are multiples of 512 from 1024 on
SMALLER: list[Change] = [
    ("num_tokens = 64", "num_tokens = 6"),
    ("hidden = 4096", "hidden = 1024"),
    ("num_topk = 6", "num_topk = 3"),
    ("num_experts = 16", "num_experts = 4"),
]
# H = 4096 is the least that 950 takes
SMALLER_950: list[Change] = [
    ("num_tokens = 256", "num_tokens = 4"),
    ("E = 4", "E = 2"),
    ("num_experts = 8", "num_experts = 4"),
    ("topK = 6", "topK = 3"),
]
TWOS_COMPLEMENT: list[Change] = [("x = (x + 8).to(torch.uint8)", "x = (x & 15).to(torch.uint8)")]


@pytest.fixture(scope="module")
def document(shared_dir: Path) -> str:
    """torch_api.txt."""
    return (shared_dir / "spec" / "torch_api.txt").read_text(encoding="utf-8")


SCENES = {"A16W16": "bf16_mega_moe", "A8W8-INT": "int8_int8_mega_moe", "A8W4-INT": "int8_int4_mega_moe"}


def a2_a3_example(
    document: str, scene: str, world: World, folder: Path, more: list[Change] | None = None
) -> list[Record]:
    """One scene of the A2/A3 example on two ranks."""
    source = changed(sources(document)[1], [*A2_A3_DEVICE_LINES, *SMALLER, *(more or [])])
    assert f"spawn({SCENES[scene]}" in source.split(f"scene == '{scene}'")[1].splitlines()[1]
    port = free_port()
    world.run(run_function, [(source, SCENES[scene], port, rank, folder) for rank in range(2)])
    return read_records(folder)


def case_of(records: list[Record], use_case: str, experts: Experts, **more: Any) -> Case:
    """The logical case of what the ranks passed."""
    ranks = (Rank(r["x"].float().numpy(), r["topk_ids"].numpy(), r["topk_weights"].float().numpy()) for r in records)
    return Case(use_case, experts, tuple(ranks), probable_sums=True, **more)


def compare(records: list[Record], case: Case) -> None:
    """Every rank's y against the oracle."""
    for r, (record, want) in enumerate(zip(records, expected(case), strict=True)):
        compare_rank(r, as_got(record["y"], record["counts"], record["topk_ids"]), want, widest=2.0**-4)


def stacked(records: list[Record], name: str, read: Callable[[Tensor], Tensor]) -> Any:
    """All ranks' experts in order."""
    return torch.stack([read(t) for record in records for t in record[name]]).numpy()


def real_scales(words: Tensor) -> Tensor:
    """64-bit words to the float32 numbers in their low halves."""
    return words.view(torch.int64).to(torch.int32).view(torch.float32)


def integer_experts(records: list[Record], bits: int, read: Callable[[Tensor], Tensor]) -> Integer:
    """[K, N] carriers to logical integers [E, N, K]."""
    w13, w2 = (stacked(records, name, read) for name in ("l1_weights", "l2_weights"))
    s13, s2 = (stacked(records, name, real_scales) for name in ("l1_weights_sf", "l2_weights_sf"))
    return Integer(w13, s13, w2, s2, bits)


def test_bf16_example(document: str, two_strangers: World, tmp_path: Path) -> None:
    records = a2_a3_example(document, "A16W16", two_strangers, tmp_path)
    w13, w2 = (stacked(records, name, lambda t: t.float().t()) for name in ("l1_weights", "l2_weights"))
    compare(records, case_of(records, "a16w16", Dense(w13, w2)))


def test_int8_example(document: str, two_strangers: World, tmp_path: Path) -> None:
    records = a2_a3_example(document, "A8W8-INT", two_strangers, tmp_path)
    compare(records, case_of(records, "a8w8-int", integer_experts(records, 8, lambda t: t.t())))


def nibbles(packed: Tensor, excess: int) -> Tensor:
    """int8 [K, N/2] -> integers [N, K]; low nibble first, stored as value + excess (0: two's complement)."""
    raw = packed.view(torch.uint8).to(torch.int16)
    pairs = torch.stack([raw & 15, raw >> 4], dim=-1).flatten(-2)
    values = pairs - 8 if excess else (pairs ^ 8) - 8
    return values.to(torch.int8).t()


def test_int4_example_is_right_in_twos_complement(document: str, two_strangers: World, tmp_path: Path) -> None:
    records = a2_a3_example(document, "A8W4-INT", two_strangers, tmp_path, TWOS_COMPLEMENT)
    compare(records, case_of(records, "a8w4-int", integer_experts(records, 4, lambda t: nibbles(t, 0))))


def test_int4_example_is_wrong_by_its_packing(document: str, two_strangers: World, tmp_path: Path) -> None:
    records = a2_a3_example(document, "A8W4-INT", two_strangers, tmp_path)
    meant = case_of(records, "a8w4-int", integer_experts(records, 4, lambda t: nibbles(t, 8)))
    for record, want in zip(records, expected(meant), strict=True):
        got = record["y"].float().numpy()
        error = np.linalg.norm(got - want.y.lo, axis=1) / np.linalg.norm(want.y.lo, axis=1)
        assert error.min() > 0.5, f"token {int(error.argmin())} is right to {error.min():.3g}"


def test_fp8_example(document: str, tmp_path: Path) -> None:
    records = run_script(changed(sources(document)[0], [*A5_DEVICE_LINES, *SMALLER_950]), tmp_path)

    def read(name: str) -> Any:
        return torch.cat([record[name][0].view(torch.uint8) for record in records]).numpy()

    w13, w2 = read("l1_weights"), read("l2_weights")
    s13, s2 = (read(name).reshape(*w.shape[:2], -1) for name, w in (("l1_weights_sf", w13), ("l2_weights_sf", w2)))
    compare(records, case_of(records, "a8w8-fp", Mx(w13, s13, w2, s2, "e5m2"), act_elem="e5m2"))
