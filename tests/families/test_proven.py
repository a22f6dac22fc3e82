"""The list of proven families says what the tests of this folder do."""

from pathlib import Path

from families.proven import FILE, rows, text


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text() == text()


def test_every_architecture_is_proven_once_and_every_test_is_there(repository: Path) -> None:
    names = [name for row in rows() for name in row["architectures"]]
    assert len(names) == len(set(names))
    assert all((repository / row["test"]).is_file() for row in rows())
