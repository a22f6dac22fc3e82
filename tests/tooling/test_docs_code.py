"""Code in README and docs: blocks tagged `cpu` run, blocks tagged `test` pass in pytest, all others parse."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from plugged import plugin_arguments

from tools.write_compatibility import compatibility, error_page
from vllm_megamoe.testing.engines import engine_environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(?P<language>\w*) ?(?P<tag>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "sh", "bash", "json", "yaml", "toml", "text"}


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: its file.
        number: of the block on its page.
        language, tag: behind the fence.
        text: between the fences.
    """

    page: Path
    number: int
    language: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.number}"


BLOCKS = [
    Block(page, number, found["language"], found["tag"], found["text"])
    for page in PAGES
    for number, found in enumerate(_FENCE.finditer(page.read_text(encoding="utf-8")))
]


def tagged(tag: str) -> list[Block]:
    return [block for block in BLOCKS if block.tag == tag]


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES, [str(b) for b in BLOCKS if b.language not in LANGUAGES]
    assert {block.tag for block in BLOCKS} == {"", "cpu", "test"}
    assert len(tagged("cpu")) >= 5
    assert len(tagged("test")) >= 5


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_it_parses(block: Block) -> None:
    if block.language == "python":
        ast.parse(block.text)
    elif block.language in ("sh", "bash"):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    elif block.language in ("json", "yaml", "toml"):
        {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}[block.language](block.text)


def test_commands_name_what_is_there() -> None:
    """Make targets, files of configs/ and subcommands in any block or line of a page."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"^ *make ([a-z][\w-]*)", text, flags=re.MULTILINE)) <= targets, page.name
        for name in re.findall(r"configs/[\w.-]+\.yaml", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
        used = set(re.findall(r"^ *\$? ?vllm-megamoe (\w+)", text, flags=re.MULTILINE))
        assert used <= {"plan", "show", "convert", "check", "doctor"}, page.name


def test_the_site_has_every_page() -> None:
    """And every page that is asked for is there; index and changelog come from README and CHANGELOG."""
    text = (ROOT / "tools" / "docs_site" / "mkdocs.yml").read_text()
    named = set(re.findall(r"([\w]+\.md)$", text, flags=re.MULTILINE))
    assert named == {page.name for page in PAGES if page.parent.name == "docs"} | {"index.md", "changelog.md"}


def test_pages_from_data_are_current() -> None:
    for name, text in (("compatibility.md", compatibility()), ("errors.md", error_page())):
        assert (ROOT / "docs" / name).read_text() == text, f"{name}: run `make docs`"


SYMPTOMS = ("garbled text", "hang at the first request", "507057", "window too small", "unknown quantization method")


def test_symptoms_have_a_heading_of_their_own() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    assert all(any(symptom in heading.lower() for heading in headings) for symptom in SYMPTOMS), headings


def variables() -> dict[str, str]:
    bin_folder = Path(sys.executable).parent
    return engine_environment() | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }


def _pages_with(tag: str) -> list[Path]:
    return sorted({block.page for block in tagged(tag)})


@pytest.mark.full
@pytest.mark.parametrize("page", _pages_with("cpu"), ids=lambda page: page.stem)
def test_blocks_for_a_cpu_run(page: Path, tmp_path: Path) -> None:
    """In the order of the page, in one folder."""
    for block in tagged("cpu"):
        if block.page == page:
            program = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
            done = subprocess.run(
                [*program, block.text], cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.full
@pytest.mark.parametrize("page", _pages_with("test"), ids=lambda page: page.stem)
def test_tests_pass_when_pasted(page: Path, tmp_path: Path) -> None:
    """Each block into a file of its own, as a reader pastes it; one pytest for the page, which shares an engine."""
    blocks = [block for block in tagged("test") if block.page == page]
    for block in blocks:
        assert block.text.count("\n") <= 40
        (tmp_path / f"test_{block.number}.py").write_text(block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, *plugin_arguments()], cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"{sum(_count(block) for block in blocks)} passed" in done.stdout


def _count(block: Block) -> int:
    cases = re.search(r'parametrize\("family", \[(.*)\]', block.text)
    return len(cases[1].split(",")) if cases else block.text.count("\ndef test_")
