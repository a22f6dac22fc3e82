"""Engine processes without an engine: their environment, their cases, and what failures leave. Each imports vLLM."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_megamoe.testing.engines import EngineRanks, engine_environment
from vllm_megamoe.testing.ranks import RankError


def about(number: int) -> tuple[int, str | None, str, str]:
    """A number of the caller's, this rank, where ranks meet, and the process."""
    return number, os.environ.get("RANK"), os.environ["MASTER_PORT"], str(os.getpid())


def fail() -> None:
    raise ValueError("planted")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRanks]:
    some = EngineRanks(1, tmp_path_factory.mktemp("ranks"), {"PLANTED": "1"})
    yield some
    some.stop()


def test_the_callers_vllm_settings_do_not_reach_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_SIMULATE", "a3@9.1")
    monkeypatch.setenv("OTHER", "kept")
    variables = engine_environment()
    assert "VLLM_MEGAMOE_SIMULATE" not in variables
    assert variables["OTHER"] == "kept"
    assert variables["OMP_NUM_THREADS"] == "1"


@pytest.mark.full
def test_processes_stay_for_the_next_case_and_a_failure_ends_them(ranks: EngineRanks) -> None:
    ((first, rank, port, process),) = ranks.run(about, [(3,)])
    assert (first, rank) == (3, None)
    ((second, _, other_port, same),) = ranks.run(about, [(4,)])
    assert (second, same) == (4, process)
    assert other_port != port
    with pytest.raises(RankError, match="ValueError: planted"):
        ranks.run(fail, [()])
    ((_, _, _, another),) = ranks.run(about, [(5,)])
    assert another != process
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.full
def test_a_rank_that_dies_is_told_with_the_end_of_its_log(ranks: EngineRanks) -> None:
    with pytest.raises(RankError, match=r"(?s)rank 0 of 1 died during the case.*\| last words"):
        ranks.run(os.system, [("echo last words; kill -9 $PPID",)])
