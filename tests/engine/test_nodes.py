"""Two hosts: vLLM's own data parallelism over nodes, here two servers on loopback addresses, experts over both.

The first serves HTTP and runs one rank, the second is headless and runs the other. What one host answers, two must.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from engine.ends import LIMIT_S, OURS, Life, started
from engine.engines import EAGER, FLOAT32, Engines, Prompts
from engine.traffic import alone, stream

from vllm_megamoe.testing.process import free_port

pytestmark = [pytest.mark.engine, pytest.mark.full]


@contextmanager
def two_hosts(
    model: str, tmp: Path, other_model: str = "", other_options: tuple[str, ...] = (), **other: str
) -> Iterator[tuple[Life, Life]]:
    """The server with HTTP and the headless one, with what the second one has different."""
    port = str(free_port())
    data_parallel = ("--data-parallel-size", "2", "--data-parallel-size-local", "1")
    shared = (*OURS, "--enforce-eager", *data_parallel, "--data-parallel-rpc-port", port)
    here, there = {"VLLM_HOST_IP": "127.0.0.1"}, {"VLLM_HOST_IP": "127.0.0.2"}
    at = ("--data-parallel-address", "127.0.0.1")
    headless = ("--headless", "--data-parallel-start-rank", "1")
    with ExitStack() as hosts:
        first = hosts.enter_context(started(model, (*shared, *at), tmp / "first.txt", **here))
        options = (*shared, *at, *headless, *other_options)
        second = hosts.enter_context(started(other_model or model, options, tmp / "second.txt", **there, **other))
        yield first, second


@pytest.fixture(scope="module")
def expected(engines: Engines, checkpoint: str, prompts: Prompts) -> Prompts:
    llm = {"model": checkpoint, **FLOAT32, **EAGER}
    return engines.run(llm, [partial(alone, prompts=prompts[:12], tokens=12)])[0][0]


def test_two_hosts_answer_as_one_and_a_lost_host_ends_the_other(
    checkpoint: str, prompts: Prompts, expected: Prompts, tmp_path: Path
) -> None:
    with two_hosts(checkpoint, tmp_path) as (first, second):
        first.wait_for(first.client.is_healthy, "health")
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda prompt: stream(first.client, prompt, 12), prompts[:12]))
        assert [answer.tokens for answer in found] == expected
        assert all("megamoe layer ready: layer=model.layers.1.mlp.experts" in life.text() for life in (first, second))
        assert "rank=0/2" in first.text()
        assert "rank=1/2" in second.text()
        blocks = first.blocks()
        for pid in second.process.members():
            os.kill(pid, signal.SIGKILL)
        after = stream(first.client, prompts[0], 100)
        assert after.error
        assert first.gone_after() < LIMIT_S, first.text()[-3000:]
        assert [block for block in blocks if block.exists()] == []
        last = first.text().splitlines()[-12:]
        # Whoever misses the rank first speaks: a call of the operator, or vLLM's own exchange of row counts.
        said = ("the connection to rank 1 broke", "The connection to a rank of this engine on 127.0.0.")
        assert any(sentence in line for line in last for sentence in said), last


NAMED = ("option workspace_budget_gib", "option fuse_shared_experts", "HCCL_BUFFSIZE", "checkpoint weights")
OTHER_OPTIONS = ('--additional-config={"megamoe": {"workspace_budget_gib": 3, "fuse_shared_experts": "off"}}',)


def test_hosts_that_differ_are_refused_at_start(checkpoint: str, tmp_path: Path) -> None:
    """Another HCCL_BUFFSIZE, other options, other weights of the same shapes: all of it is named, on both hosts."""
    from vllm_megamoe.demo.checkpoint import make_checkpoint

    other = str(make_checkpoint(tmp_path / "other", seed=1))
    with two_hosts(checkpoint, tmp_path, other, OTHER_OPTIONS, HCCL_BUFFSIZE="300") as (first, second):
        first.wait_for(lambda: "are not alike" in first.text(), "refusal")
        assert first.gone_after() < LIMIT_S
        assert second.gone_after() < LIMIT_S
        for life in (first, second):
            text = life.text()
            assert "The ranks of the expert-parallel group are not alike:" in text
            for name in NAMED:
                (line,) = {line.partition(f"  - {name}: ")[2] for line in text.splitlines() if f"  - {name}: " in line}
                assert " on rank 0 (" in line
                assert " on rank 1 (" in line
            assert "checkpoint config: " not in text
            assert "megamoe layer ready" not in text
