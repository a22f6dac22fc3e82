"""The published limits of both documents, line by line, and the table's citations of them."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from profiles.cases import CASES
from profiles.published import SECTIONS, Line

from vllm_megamoe.profiles.limits import TABLE, Cell, Limits
from vllm_megamoe.profiles.rules import RULES

EACH = [pytest.param(name, line, id=f"{name}:{line.first}") for name, (lines, _) in SECTIONS.items() for line in lines]
PROVEN = {one.rule for one in CASES}


def cells(key: tuple[str, str]) -> Iterator[tuple[str, Cell[object]]]:
    """The cells of a row, by name."""
    for field in fields(Limits):
        yield field.name, getattr(TABLE[key], field.name)


def read(folder: Path, name: str) -> list[str]:
    return (folder / "spec" / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", SECTIONS)
def test_no_line_is_left_out(name: str, shared_dir: Path) -> None:
    lines, ranges = SECTIONS[name]
    covered = {n for line in lines for n in range(line.first, line.last + 1)}
    text = read(shared_dir, name)
    stated = {n for first, last in ranges for n in range(first, last + 1) if text[n - 1].strip()}
    assert stated - covered == set()


@pytest.mark.parametrize(("name", "line"), EACH)
def test_the_line_says_what_is_cited(name: str, line: Line, shared_dir: Path) -> None:
    assert line.text in "\n".join(read(shared_dir, name)[line.first - 1 : line.last])


@pytest.mark.parametrize(("name", "line"), EACH)
def test_a_proven_rule_holds_the_line(name: str, line: Line) -> None:
    if isinstance(line.held, str):
        assert line.held.split(":")[0] in ("twin", "size", "unseen", "text")
    else:
        assert set(line.held) <= PROVEN
        assert line.held


def test_the_documents_lines_hold_every_rule_but_those_of_code_alone() -> None:
    held = {
        rule for lines, _ in SECTIONS.values() for line in lines for rule in line.held if isinstance(line.held, tuple)
    }
    assert {rule.id for rule in RULES} - held == {"capture", "buffer-arguments"}


@pytest.mark.parametrize("key", TABLE, ids="-".join)
def test_every_cell_names_a_document_or_a_file_with_its_commit(key: tuple[str, str]) -> None:
    named = r"(torch_api|operator_readme)\.txt:\d|06be6c2ca|577814407|comm_context\.cpp|op kernel|profile none"
    for name, cell in cells(key):
        assert re.search(named, cell.source), (name, cell.source)


@pytest.mark.parametrize("key", TABLE, ids="-".join)
def test_cited_lines_are_lines_that_state_limits(key: tuple[str, str]) -> None:
    for name, cell in cells(key):
        for document, numbers in re.findall(r"(torch_api\.txt|operator_readme\.txt):([\d,-]+)", cell.source):
            lines, _ = SECTIONS[document]
            known = {n for line in lines for n in range(line.first, line.last + 1)} | PROTOTYPES.get(document, set())
            for part in numbers.strip(",").split(","):
                first, _, last = part.partition("-")
                assert {int(first), int(last or first)} <= known, (name, document, part)


PROTOTYPES = {"torch_api.txt": {291, 295, 539}, "operator_readme.txt": {51}}
"""Signatures, an example and a formula that cells cite beside the limits."""
