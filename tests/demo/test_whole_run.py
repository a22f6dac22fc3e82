"""The demo from begin to end on a fake server: what it shows, what it keeps, when it fails."""

import re
from collections.abc import Callable

import pytest
from demo.runs import DemoRun


def test_tells_all_and_keeps_the_baseline(start: Callable[..., DemoRun]) -> None:
    first = start(shift=0.03125)
    assert first.wait() == 0, first.output()
    text = first.output()
    assert [line[:3] for line in text.splitlines() if line[1:3] == "/6"] == ["1/6", "2/6", "3/6", "4/6", "5/6", "6/6"]
    assert "--quantization megamoe --tensor-parallel-size 2 --enable-expert-parallel" in text
    assert "largest log-probability difference: 0.0312 (mean 0.0312)" in text
    assert "answer:   " + 48 * "x" in text
    assert "streamed: " + 48 * "y" in text
    assert first.cache.baseline.exists()

    second = start(shift=-0.015625)
    assert second.wait() == 0, second.output()
    assert "largest log-probability difference: 0.0156" in second.output()
    assert second.output().count("kept from before") == 2
    assert second.output().count("vllm serve") == 1


@pytest.mark.full
def test_says_how_long_it_takes_and_took_and_what_it_waits_for(start: Callable[..., DemoRun]) -> None:
    """An estimate first, our own words while it waits, the total last; vLLM's log lines stay in the log."""
    first = start()
    assert first.wait() == 0, first.output()
    lines = first.output().splitlines()
    estimate = re.fullmatch(r"This takes some (\d+) s on two cores that have nothing else to do\.", lines[0])
    assert estimate
    assert re.match(r"Done in \d+ s\. A second run keeps what is in ", lines[-1])
    assert re.search(r"^    waiting for the server, some \d+ s\n    \d+ s  vLLM starts: ", first.output(), re.MULTILINE)
    assert first.output().count("    done in ") == 2
    assert "stubborn child is up" in first.cache.log("server").read_text()
    assert "stubborn child is up" not in first.output()
    assert "[fake.py:1]" not in first.output()

    second = start()
    assert second.wait() == 0, second.output()
    shorter = re.match(r"This takes some (\d+) s", second.output())
    assert shorter
    assert int(shorter[1]) < int(estimate[1])


@pytest.mark.full
def test_load_counts_what_the_demo_asked(start: Callable[..., DemoRun]) -> None:
    """The fake adds (layer + expert) to each expert per request."""
    run = start()
    assert run.wait() == 0, run.output()
    rows = [line for line in run.output().splitlines() if "model.layers." in line]
    counts = [[int(cell) for cell in row.split("│")[2:-1]] for row in rows]
    requests = counts[0][1]
    assert requests >= 6
    assert counts == [
        [requests * (layer + expert) for expert in range(8)] + [requests * (8 * layer + 28)] for layer in range(2)
    ]


def test_a_wrong_model_fails_the_demo(start: Callable[..., DemoRun]) -> None:
    run = start(shift=0.3)
    assert run.wait() == 1
    assert "log-probabilities differ by 0.3000" in run.output()


@pytest.mark.full
def test_options_reach_the_server_and_lift_the_limit(start: Callable[..., DemoRun]) -> None:
    run = start("--", "--max-model-len", "77", shift=0.3)
    assert run.wait() == 0, run.output()
    assert "--enable-expert-parallel --max-model-len 77" in run.output()


def test_a_server_that_dies_is_reported_with_its_first_error(start: Callable[..., DemoRun]) -> None:
    run = start(mode="dies")
    assert run.wait() == 1
    assert "the server ended before it was healthy (exit code 3)" in run.output()
    assert "first error in it: MemoryError: no room for experts" in run.output()
    assert "| RuntimeError: Engine core initialization failed" in run.output()
    assert "Traceback" not in run.output()


@pytest.mark.parametrize("arguments", [("--cach", "x"), ("--keep", "--unknown")])
def test_a_misspelt_option_is_rejected(start: Callable[..., DemoRun], arguments: tuple[str, ...]) -> None:
    run = start(*arguments)
    assert run.wait() == 2
    assert "No such option" in run.output()
