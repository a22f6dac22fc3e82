"""docs/operator.md: every block runs, and what it says of modes, codes and errors is so."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, transform_weights_for_mega_moe
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import PROFILE_NAMES, find_profile

USE_CASES = ("a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "operator.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def problem(blocks: list[str]) -> dict[str, Any]:
    """The names that the first block defines, which the others use."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks[0], "problem", "exec"), names)
    return names


def run(block: str, problem: dict[str, Any]) -> dict[str, Any]:
    names = dict(problem)
    exec(compile(block, "block", "exec"), names)
    return names


def block_with(blocks: list[str], words: str) -> str:
    (found,) = [block for block in blocks[1:] if words in block]
    return found


def stated_errors(page: str) -> dict[str, float]:
    rows = re.findall(r"^\| `(a\d+w\d+(?:-\w+)?)` \|.*\| ([\d.]+) % \|$", page, re.MULTILINE)
    return {name: float(percent) / 100 for name, percent in rows}


def test_the_page_has_a_block_for_each_use_case(blocks: list[str], page: str) -> None:
    assert [block_with(blocks, f"# {name}:") for name in USE_CASES]
    assert set(stated_errors(page)) == set(USE_CASES)
    assert len(blocks) == 11


@pytest.mark.parametrize("use_case", USE_CASES)
def test_a_use_case_written_out_is_the_helpers_call(
    use_case: str, blocks: list[str], problem: dict[str, Any], page: str
) -> None:
    """Bit for bit; and the error is the one that the table states, to its last digit."""
    names = run(block_with(blocks, f"# {use_case}:"), problem)
    operands = transform_weights_for_mega_moe(problem["w13"], problem["w2"], use_case)
    sizes = problem["EXPERTS"], problem["TOKENS"], problem["TOPK"]
    buffer = get_symm_buffer_for_mega_moe(None, *sizes, **operands.buffer_arguments())
    rows = problem["x"], problem["topk_ids"], problem["topk_weights"]
    y, counts = mega_moe(*rows, sym_buffer=buffer, **operands.arguments())
    assert y.equal(names["y"])
    assert counts.tolist() == [int((problem["topk_ids"] == e).sum()) for e in range(problem["EXPERTS"])]
    # torch's normal numbers are those of this seed everywhere; a last digit may turn by half of itself.
    assert problem["error"](y) == pytest.approx(stated_errors(page)[use_case], rel=0.1)


def test_allocate_transform_call(blocks: list[str], problem: dict[str, Any], page: str) -> None:
    names = run(block_with(blocks, "\nbuffer.destroy()\n"), problem)
    assert problem["error"](names["y"]) == pytest.approx(stated_errors(page)["a8w4-int"], rel=0.1)


def test_quantised_experts(blocks: list[str], problem: dict[str, Any]) -> None:
    """INT4 codes as INT8 codes are the same weights; the paths differ in how the INT8 activations were rounded.

    Two roundings to a grid of step amax / 127 differ by at most step / sqrt(6) in rms; with amax up to 6 times the rms
    of a row that is 6 / 127 / sqrt(6) = 1.9 %.
    """
    first, second = run(block_with(blocks, "bits=4"), problem)["rows"]
    assert float((first.float() - second.float()).norm() / second.float().norm()) < 0.019


def test_padding_and_shared_experts(blocks: list[str], problem: dict[str, Any]) -> None:
    """The same without padding, the shared expert as a routed one of weight 1."""
    y = run(block_with(blocks, "shared_arguments"), problem)["y"]
    operands = transform_weights_for_mega_moe(problem["w13"], problem["w2"], "a8w8-fp")
    shared = transform_weights_for_mega_moe(problem["w13"][:1], problem["w2"][:1], "a8w8-fp")
    sizes = problem["EXPERTS"], problem["TOKENS"], problem["TOPK"]
    buffer = get_symm_buffer_for_mega_moe(None, *sizes, **operands.buffer_arguments())
    rows = problem["x"], problem["topk_ids"], problem["topk_weights"]
    expected, _ = mega_moe(*rows, sym_buffer=buffer, **operands.arguments(), **shared.shared_arguments())
    assert y.equal(expected)
    alone, _ = mega_moe(*rows, sym_buffer=buffer, **operands.arguments())
    assert not y.equal(alone)


PRODUCTS = [
    ("a3@9.1", "a8w8-int"),
    ("950@9.2", "a8w4-fp"),
    pytest.param("a2@9.2", "a16w16", marks=pytest.mark.full),
    pytest.param("a3@9.2", "a8w4-int", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("profile", "use_case"), PRODUCTS)
def test_two_ranks_of_a_product(
    profile: str, use_case: str, blocks: list[str], tmp_path: Path, repository: Path
) -> None:
    script = block_with(blocks, "mp.spawn")
    given = 'PROFILE, USE_CASE = "a3@9.1", "a8w8-int"'
    assert given in script
    file = tmp_path / "two_ranks.py"
    file.write_text(script.replace(given, f'PROFILE, USE_CASE = "{profile}", "{use_case}"'), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    # Unbuffered, print() writes text and line end apart: two ranks on one pipe may share a line, not a text.
    said = sorted(re.findall(r"rank (\d): y \[8, 1024\], rows[^\[]*\[([\d, ]+)\]", done.stdout))
    assert [rank for rank, _ in said] == ["0", "1"], done.stdout
    counts = [int(n) for _, rows in said for n in rows.split(",")]
    assert sum(counts) == 2 * 8 * 2


@pytest.mark.parametrize("use_case", USE_CASES)
def test_the_table_names_the_products(use_case: str, page: str) -> None:
    (row,) = re.findall(rf"^\| `{use_case}` \| ([^|]*) \|", page, re.MULTILINE)
    products = {
        find_profile(name).product
        for name in PROFILE_NAMES
        if name != "none" and use_case in limits_of(find_profile(name)).use_cases.value
    }
    assert set(row.lower().split(", ")) == products
