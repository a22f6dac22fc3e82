"""A MoE layer on vLLM's CPU platform, through our method and through vLLM's own modular kernel: one line of JSON.

python -m bench.around_cpu
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench.around_calls import ANSWER, around
from contract.support.engine import Model, make_config
from torch import Tensor

ROWS = 16
MODEL = Model(hidden=1024, intermediate=512, experts=32, topk=8)


def build(vllm_config: Any, folder: Path) -> Any:
    """One layer with dummy weights, processed."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.model_executor.model_loader.utils import process_weights_after_loading
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeSparseMoeBlock
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_current_vllm_config(vllm_config), set_default_torch_dtype(torch.bfloat16):
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        block = Qwen3MoeSparseMoeBlock(vllm_config=vllm_config, prefix="model.layers.0.mlp")
        process_weights_after_loading(block, vllm_config.model_config, torch.device("cpu"))
    return block


def watch(vllm_config: Any, block: Any) -> dict[str, Any]:
    """What stands around the operator in a call of the layer's method, as vLLM's runner makes it."""
    from vllm.forward_context import set_forward_context

    experts, found = block.experts.routed_experts, dict[str, Any]()
    apply = experts.quant_method.apply

    def watched(**given: Any) -> Any:
        result = apply(**given)
        silence(experts, result)
        found.update(around(lambda: apply(**given)))
        return result

    experts.quant_method.apply = watched
    with torch.inference_mode(), set_forward_context(None, vllm_config, num_tokens=ROWS):
        block(torch.randn(ROWS, MODEL.hidden, dtype=torch.bfloat16))
    return found


def silence(experts: Any, y: Tensor) -> None:
    """Put what returns at once in the operator's place: in ours what the buffer runs, in vLLM's the experts."""
    state = getattr(experts, "mega_moe", None)
    if state is None:
        experts.quant_method.moe_kernel.impl.fused_experts.apply = lambda **given: None
        return
    counts = torch.zeros(state.plan.experts_per_rank, dtype=torch.int32)
    held, none = state.buffer.held, (y.clone(), counts)
    held.bind = lambda fixed: lambda *rows: none
    # The layer has bound what was there: another object makes it look again.
    state.buffer.held = _Other(held)


class _Other:
    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as name:
        place = MODEL.write(Path(name) / "model")
        for path, flag in (("vLLM's modular kernel, CPU", None), ("mega_moe, CPU lane", "megamoe")):
            config = make_config(
                place, quantization=flag, tokens=64, tensor_parallel_size=1, enable_expert_parallel=False
            )
            found[path] = watch(config, build(config, Path(name)))
    print(ANSWER + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
