"""docs/models.md is what its generator writes, and the generator says when it cannot."""

from pathlib import Path

import pytest

from tools import write_models


def test_page_is_current(repository: Path, shared_dir: Path) -> None:
    committed = (repository / "docs" / "models.md").read_text()
    assert committed == write_models.page(shared_dir / "model_configs"), "run python -m tools.write_models"


def test_says_that_the_configs_are_absent_and_keeps_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "models.md"
    kept.write_text("as it was")
    monkeypatch.setattr(write_models, "PAGE", kept)
    monkeypatch.setenv("VLLM_MEGAMOE_SHARED", str(tmp_path / "absent"))
    assert write_models.main() == 0
    assert "not written" in capsys.readouterr().out
    assert kept.read_text() == "as it was"
