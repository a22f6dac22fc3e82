"""What the demo reads out of logs."""

from pathlib import Path

import pytest

from vllm_megamoe.demo.report import read_load, settled_load, since
from vllm_megamoe.testing.process import HarnessError

WORKER = "(Worker_TP1_EP1 pid=7) INFO 11-30 07:06:30 [load_report.py:48] "


def test_the_last_line_of_each_layer_and_rank_counts() -> None:
    log = (
        f"{WORKER}megamoe expert load: layer=a.1 rank=1 first_expert=2 calls=1 tokens=[1, 2]\n"
        f"{WORKER}megamoe expert load: layer=a.1 rank=0 first_expert=0 calls=1 tokens=[3, 4]\n"
        f"{WORKER}something else\n"
        f"{WORKER}megamoe expert load: layer=a.1 rank=1 first_expert=2 calls=2 tokens=[50, 60]\n"
        f"{WORKER}megamoe expert load: layer=a.0 rank=0 first_expert=0 calls=9 tokens=[7]\n"
    )
    assert read_load(log) == {"a.1": [3, 4, 50, 60], "a.0": [7]}


def test_only_what_came_since_a_reading_is_shown() -> None:
    assert since({"a": [1, 2]}, {"a": [4, 2], "b": [5, 6]}) == {"a": [3, 0], "b": [5, 6]}


def test_a_server_without_warm_up_has_no_load_yet_but_must_have_one_in_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{WORKER}something else\n")
    assert settled_load(log, 0.01, needed=False) == {}
    with pytest.raises(HarnessError, match="no expert load"):
        settled_load(log, 0.01)


def test_a_layer_that_changes_its_number_of_experts_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        since({"a": [1]}, {"a": [1, 2]})
