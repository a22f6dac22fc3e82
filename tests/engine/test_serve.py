"""`vllm serve` over HTTP with a real client: two ranks, both parallel kinds of request, the same tokens as offline."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine.engines import Engines, Prompts
from openai import OpenAI

from vllm_megamoe.demo.report import settled_load
from vllm_megamoe.testing.engines import engine_environment
from vllm_megamoe.testing.server import Server

pytestmark = pytest.mark.engine

OPTIONS = ["--quantization", "megamoe", "--tensor-parallel-size", "2", "--enable-expert-parallel"]
LIMITS = ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]


@dataclass(frozen=True)
class Served:
    """A running server."""

    client: OpenAI
    model: str
    log: Path


@pytest.fixture(scope="module")
def served(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose environment says nothing about processors or KV space: the plugin sets both."""
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    unset = {k: v for k, v in engine_environment().items() if k != "VLLM_CPU_KVCACHE_SPACE"}
    with Server(Path(checkpoint), (*OPTIONS, *LIMITS), log).running(unset) as client:
        yield Served(OpenAI(base_url=f"{client.url}/v1", api_key="none"), checkpoint, log)


def test_chat_and_stream_agree(served: Served) -> None:
    ask = {"model": served.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    whole = served.client.chat.completions.create(**ask)
    pieces = served.client.chat.completions.create(**ask, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert whole.usage.completion_tokens > 0
    assert text == whole.choices[0].message.content


def test_concurrent_completions_equal_vllms_own_moe(
    served: Served, engines: Engines, checkpoint: str, prompts: Prompts
) -> None:
    """Sixteen requests at once give the tokens of vLLM's own MoE on one rank (the baseline of test_float32)."""
    baseline = engines.float32_baseline(checkpoint, prompts)[0]

    def complete(prompt: list[int]) -> list[int]:
        answer = served.client.completions.create(
            model=served.model,
            prompt=prompt,
            max_tokens=8,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        return list(answer.choices[0].token_ids)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(complete, prompts[:16]))
    assert found == baseline[:16]


def test_the_log_tells_the_environment_and_the_expert_load(served: Served) -> None:
    text = served.log.read_text()
    assert "VLLM_CPU_OMP_THREADS_BIND is unset" in text
    assert "VLLM_CPU_KVCACHE_SPACE is unset" in text
    load = settled_load(served.log, 1.0)
    assert sorted(load) == [f"model.layers.{i}.mlp.experts" for i in range(2)]
    # Each row goes to two of the eight experts, which the two ranks count between them.
    assert [len(counts) for counts in load.values()] == [8, 8]
    assert all(sum(counts) > 0 and sum(counts) % 2 == 0 for counts in load.values())
