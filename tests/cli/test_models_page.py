"""docs/models.md and docs/checkpoints.md are what their generators write, and these say when they cannot."""

from pathlib import Path

import pytest

from tools import write_checkpoints, write_models


@pytest.mark.full
def test_page_is_current(repository: Path, shared_dir: Path) -> None:
    committed = (repository / "docs" / "models.md").read_text()
    assert committed == write_models.page(shared_dir / "model_configs"), "run python -m tools.write_models"


@pytest.mark.full
def test_page_of_checkpoints_is_current(repository: Path, shared_dir: Path) -> None:
    committed = (repository / "docs" / "checkpoints.md").read_text()
    assert committed == write_checkpoints.page(shared_dir / "model_configs"), "run python -m tools.write_checkpoints"


def test_says_that_the_configs_are_absent_and_keeps_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "models.md"
    kept.write_text("as it was")
    monkeypatch.setattr(write_models, "PAGE", kept)
    monkeypatch.setenv("VLLM_MEGAMOE_SHARED", str(tmp_path / "absent"))
    assert write_models.main([]) == 0
    assert "not written" in capsys.readouterr().out
    assert kept.read_text() == "as it was"
    monkeypatch.setattr(write_checkpoints, "PAGE", kept)
    assert write_checkpoints.main() == 0
    assert "checkpoints.md: not written" in capsys.readouterr().out
    assert kept.read_text() == "as it was"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one dense model, which is all of the list."""
    (tmp_path / "org--dense_config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (tmp_path / "models.json").write_text("{}")
    monkeypatch.setattr(write_models, "MODELS", tmp_path / "models.json")
    write_models.add_all(tmp_path)
    return tmp_path


def test_a_config_that_is_not_listed_changes_nothing(folder: Path) -> None:
    page = write_models.page(folder)
    assert "org/dense." in page
    (folder / "org--new_config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert write_models.page(folder) == page
    write_models.add_all(folder)
    assert "org/dense, org/new." in write_models.page(folder)


def test_a_listed_config_that_is_another_one_is_named(folder: Path) -> None:
    (folder / "org--dense_hf_quant_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no file of \[\], another file of \['org--dense'\]"):
        write_models.page(folder)
    (folder / "org--dense_config.json").unlink()
    with pytest.raises(ValueError, match=r"no file of \['org--dense'\]"):
        write_models.page(folder)
