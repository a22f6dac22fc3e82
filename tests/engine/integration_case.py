"""What a model team writes in its own CI: an engine inside the test process, and a look at the layers.

test_integration.py runs this file with a pytest of its own, because an engine leaves its mark on a process.
"""

import os
from collections.abc import Iterator

import pytest
import torch
from vllm import LLM, SamplingParams

from vllm_megamoe.ops import SymmBuffer


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    engine = LLM(
        os.environ["CHECKPOINT"],
        quantization="megamoe",
        enforce_eager=True,
        max_model_len=128,
        enable_prefix_caching=False,
    )
    yield engine
    engine.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def layers(llm: LLM) -> list[torch.nn.Module]:
    model = llm.llm_engine.model_executor.driver_worker.worker.get_model()
    return [module for module in model.modules() if hasattr(module, "mega_moe_buffer")]


def test_every_moe_layer_has_its_buffer(layers: list[torch.nn.Module]) -> None:
    assert len(layers) == 2
    assert all(isinstance(layer.mega_moe_buffer, SymmBuffer) for layer in layers)
    assert {(b.num_experts, b.num_topk, b.hidden) for b in (layer.mega_moe_buffer for layer in layers)} == {
        (8, 2, 1024)
    }


def test_one_call_per_layer_and_step_and_every_row_counted(llm: LLM, layers: list[torch.nn.Module]) -> None:
    before = [(layer.mega_moe.calls, layer.mega_moe.counts.clone()) for layer in layers]
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": list(range(10, 29))}], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 5
    for layer, (calls, counts) in zip(layers, before, strict=True):
        # One prefill of 19 rows and four steps of one row; each row goes to two experts.
        assert layer.mega_moe.calls - calls == 5
        assert int((layer.mega_moe.counts - counts).sum()) == 2 * (19 + 4)
