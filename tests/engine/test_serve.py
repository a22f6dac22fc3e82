"""`vllm serve` over HTTP with a real client: two ranks, both parallel kinds of request, the same tokens as offline."""

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine.engines import Engines, Prompts
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

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


def test_the_log_tells_the_environment_and_the_plan_once(served: Served) -> None:
    text = served.log.read_text()
    assert "VLLM_CPU_OMP_THREADS_BIND is unset" in text
    assert "VLLM_CPU_KVCACHE_SPACE is unset" in text
    assert text.count("megamoe plan: ") == 1


def test_metrics_and_log_count_what_was_served(served: Served) -> None:
    """Rows of requests alone, each for two of eight experts in two layers; the warm-up is none of them."""
    before = settled(served)
    assert before["vllm:megamoe_info"] == 1
    answers = [
        served.client.completions.create(
            model=served.model, prompt=list(range(10, 30)), max_tokens=9, temperature=0, extra_body={"ignore_eos": True}
        )
        for _ in range(2)
    ]
    assert [answer.usage.completion_tokens for answer in answers] == [9, 9]
    served_rows = before["vllm:megamoe_expert_rows_total"] + 4 * 2 * (20 + 8)
    after = settled(served)
    # The second prompt's whole blocks may come from the prefix cache, 16 tokens or none.
    assert after["vllm:megamoe_expert_rows_total"] in (served_rows, served_rows - 4 * 16)
    assert after["vllm:megamoe_dropped_rows_total"] == 0
    assert after["vllm:megamoe_operator_calls_total"] > before["vllm:megamoe_operator_calls_total"]
    assert 1 <= after["vllm:megamoe_expert_load_max_over_mean"] <= 8
    assert 1 <= after["vllm:megamoe_rank_load_max_over_mean"] <= 2
    assert 0 < after["vllm:megamoe_receive_headroom"] < 1
    assert "x the mean of 8; rank " in served.log.read_text()


def counted(served: Served) -> dict[str, float]:
    """Our metrics on the server's /metrics: sums of counters, the largest of a gauge's series."""
    url = str(served.client.base_url).replace("/v1/", "/metrics")
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:megamoe_"):
                old = found.get(sample.name, 0.0)
                found[sample.name] = old + sample.value if family.type == "counter" else max(old, sample.value)
    return found


def settled(served: Served) -> dict[str, float]:
    """As `counted`, once nothing has been added for three seconds; metrics are written every second."""
    found, since = counted(served), time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(0.5)
        now = counted(served)
        if now != found:
            found, since = now, time.monotonic()
    return found
