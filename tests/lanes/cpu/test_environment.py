"""What two workers on one host need is set where the user set nothing, and only there."""

import logging
import os
from types import SimpleNamespace

import pytest

from vllm_megamoe.lanes.cpu.workers import BIND, KV_SPACE, binding, prepare


@pytest.mark.parametrize(
    ("cpus", "workers", "expected"),
    [
        ([0, 1], 2, "0|1"),
        ([0, 1, 2, 3], 2, "0,1|2,3"),
        ([4, 6, 7], 2, "4|6"),
        ([0, 1], 4, "0|1|0|1"),
        ([5], 2, "5|5"),
    ],
)
def test_binding(cpus: list[int], workers: int, expected: str) -> None:
    assert binding(cpus, workers) == expected


def config(world_size: int, data_parallel_size: int) -> SimpleNamespace:
    """As much of a VllmConfig as counts workers."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=world_size, data_parallel_size=data_parallel_size)
    )


@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (1, 2), (2, 2)])
def test_unset_variables_are_set_with_a_log_line(
    tp: int, dp: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(BIND, raising=False)
    monkeypatch.delenv(KV_SPACE, raising=False)
    with caplog.at_level(logging.INFO, logger="vllm_megamoe"):
        prepare(config(tp, dp))
    assert len(os.environ[BIND].split("|")) == tp * dp
    # README: two workers with their weights run on a laptop of 16 GB, so vLLM's own unit (GiB) once for each.
    assert os.environ[KV_SPACE] == "1"
    assert BIND in caplog.text
    assert KV_SPACE in caplog.text


def test_the_users_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BIND, "0-3|4-7")
    monkeypatch.setenv(KV_SPACE, "40")
    prepare(config(2, 1))
    assert (os.environ[BIND], os.environ[KV_SPACE]) == ("0-3|4-7", "40")


def test_one_worker_is_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BIND, raising=False)
    monkeypatch.delenv(KV_SPACE, raising=False)
    prepare(config(1, 1))
    assert BIND not in os.environ
    assert KV_SPACE not in os.environ
