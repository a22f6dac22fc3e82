"""vllm-ascend brought up as its worker does it, short of the model runner: config, groups, token capacity, one layer.

Runs in a rank, under the simulated torch_npu. Names and order are those of vllm-ascend 0.30.0rc2 (worker/worker.py
NPUWorker.__init__ and _init_worker_distributed_environment, worker/model_runner_v1.py).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contract.support.cases import Case
    from torch import Tensor

PREFIX = "model.layers.0.mlp"
MAX_NUM_REQS = 8


@dataclass(frozen=True)
class Model:
    """One MoE layer, in the shape of Qwen3-MoE, which vLLM builds from its config alone."""

    hidden: int = 1024
    intermediate: int = 1024
    experts: int = 8
    topk: int = 2
    description: dict[str, str] | None = None
    """What msModelSlim writes beside a checkpoint: weight name -> type; None for BF16."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Keys of config.json that differ."""

    def write(self, folder: Path) -> Path:
        """The files that vLLM and vllm-ascend read before any weight."""
        config = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "moe_intermediate_size": self.intermediate,
            "num_experts": self.experts,
            "num_experts_per_tok": self.topk,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "num_hidden_layers": 1,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 512,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | self.changes))
        if self.description is not None:
            (folder / "quant_model_description.json").write_text(json.dumps(self.description))
        return folder


DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "num_key_value_heads": 8,
    "rope_theta": 10000.0,
    "rope_scaling": None,
}
"""Keys of a model whose MoE layers have shared experts that no gate weighs."""


def model_of(case: "Case") -> Model:
    """The model that a case's layer is of."""
    if not case.shared:
        return Model(intermediate=case.intermediate, description=case.description)
    experts = {"n_routed_experts": Model.experts, "n_shared_experts": case.shared}
    changes = DEEPSEEK | experts | {"routed_scaling_factor": case.scaling}
    return Model(intermediate=case.intermediate, description=case.description, changes=changes)


def make_config(folder: Path, *, quantization: str | None = None, tokens: int = 1024, **options: Any) -> Any:
    """A VllmConfig as `vllm serve` makes it.

    Args:
        folder: of the model.
        quantization: the flag's value.
        tokens: max_num_batched_tokens.
        options: more arguments of EngineArgs.
    """
    from vllm.engine.arg_utils import EngineArgs

    arguments = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": MAX_NUM_REQS,
        "tensor_parallel_size": 2,
        "enable_expert_parallel": True,
        "distributed_executor_backend": "mp",
        "quantization": quantization,
    }
    return EngineArgs(**(arguments | options)).create_engine_config()


def start_worker(vllm_config: Any, rank: int, meeting_point: str) -> None:
    """Patches, custom operators and process groups of one worker process."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm_ascend import ops
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.distributed.parallel_state import init_ascend_model_parallel
    from vllm_ascend.utils import adapt_patch, register_ascend_customop

    adapt_patch()
    ops.register_dummy_fusion_op()
    register_ascend_customop(vllm_config)
    init_ascend_config(vllm_config)
    parallel = vllm_config.parallel_config
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(parallel.world_size, rank, meeting_point, rank, "hccl")
        ensure_model_parallel_initialized(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.decode_context_parallel_size,
        )
        init_ascend_model_parallel(parallel, vllm_config.engram_config)


def renew_state(vllm_config: Any) -> None:
    """Let another engine config take over this process: vllm-ascend keeps its own state in module globals.

    Its groups are made anew too, so that what the last case left on a communicator does not reach the next one.
    """
    from vllm.config import set_current_vllm_config
    from vllm_ascend import ascend_forward_context as context
    from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
    from vllm_ascend.distributed.parallel_state import destroy_ascend_model_parallel, init_ascend_model_parallel
    from vllm_ascend.ops.fused_moe import moe_comm_method

    clear_ascend_config()
    init_ascend_config(vllm_config)
    moe_comm_method._MoECommMethods.clear()
    context._mc2_tokens_capacity = context._reserved_mc2_mask = None
    with set_current_vllm_config(vllm_config):
        destroy_ascend_model_parallel()
        init_ascend_model_parallel(vllm_config.parallel_config, vllm_config.engram_config)


def set_capacity(vllm_config: Any) -> None:
    """What the model runner sets once: tokens that a rank may send, and the buffer of masks."""
    from vllm_ascend.ascend_forward_context import set_mc2_mask, set_mc2_tokens_capacity

    set_mc2_tokens_capacity(vllm_config, MAX_NUM_REQS, 1)
    set_mc2_mask(vllm_config, "npu")


def build_block(vllm_config: Any) -> Any:
    """vLLM's own MoE block, with the classes that vllm-ascend puts in place of vLLM's."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models.deepseek_v2 import DeepseekV2MoE
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeSparseMoeBlock
    from vllm.utils.torch_utils import set_default_torch_dtype

    set_capacity(vllm_config)
    hf_config, parallel = vllm_config.model_config.hf_config, vllm_config.parallel_config
    with set_current_vllm_config(vllm_config), set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
        if hf_config.model_type == "deepseek_v2":
            # The factor goes onto the output, as the decoder layer of this model has it.
            return DeepseekV2MoE(
                hf_config, parallel, vllm_config.quant_config, prefix=PREFIX, apply_routed_scale_to_output=True
            )
        return Qwen3MoeSparseMoeBlock(vllm_config=vllm_config, prefix=PREFIX)


def load(block: Any, tensors: "Iterable[tuple[str, Tensor]]") -> None:
    """Hand the checkpoint's tensors of a block to vLLM's loaders, as the model's own `load_weights` does."""
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    for name, tensor in tensors:
        home, _, rest = name.partition(".")
        if home == "experts":
            list(block.experts.load_weights([(rest, tensor)]) or ())
            continue
        shards = [n for n, part in enumerate(("gate_proj", "up_proj")) if rest.startswith(part)]
        path = f"{home}.gate_up_proj.{rest.partition('.')[2]}" if shards else name
        parameter = block.get_parameter(path)
        getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor, *shards)


def finish_loading(vllm_config: Any, block: Any) -> None:
    """vLLM's step after the last weight was loaded."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    with set_current_vllm_config(vllm_config):
        process_weights_after_loading(block, vllm_config.model_config, torch.device("cpu"))


def forward(vllm_config: Any, block: Any, x: Any, **options: Any) -> Any:
    """One step of the block with rows `x`, the same on all ranks of a TP group."""
    import torch
    from vllm_ascend.ascend_forward_context import set_ascend_forward_context

    with torch.inference_mode(), set_ascend_forward_context(None, vllm_config, num_tokens=len(x), **options):
        return block(x)


def wait_for(place: Path, limit_s: float = 120.0) -> Path:
    """The place, once another rank has made it.

    Raises:
        TimeoutError: it has not in time.
    """
    deadline = monotonic() + limit_s
    while not place.exists():
        if monotonic() > deadline:
            raise TimeoutError(f"{place} was not made in {limit_s:g} s")
        sleep(0.05)
    return place


def fill(block: Any, rank: int, ranks: int) -> None:
    """Put the suite's values into the block's parameters as a loader would; experts go to ranks in order."""
    from contract.support.values import tensor_for

    for name, parameter in block.named_parameters():
        shape = tuple(parameter.shape)
        if ".routed_experts." in name:
            mine = shape[0]
            whole = tensor_for(name, (mine * ranks, *shape[1:]), parameter.dtype)
            parameter.data.copy_(whole[rank * mine : (rank + 1) * mine])
        else:
            parameter.data.copy_(tensor_for(name, shape, parameter.dtype))
