"""Layers whose experts are not chosen by the router's own scores, or that are not the main model's.

- DeepSeek-V4's first layers take each token's experts from a table (`tid2eid`), by vllm-ascend's own block and router.
- A draft (MTP) layer runs in vllm-ascend's context of a draft, on the main model's buffer.
"""

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import EXPERTS, HIDDEN, LIMIT, TOPK, Case
from contract.support.values import rows_for, tensor_for
from contract.support.weights import checkpoint

if TYPE_CHECKING:
    from contract.support.rank import Rank

TOKENS = (1, 5, 16)
VOCABULARY = 512
FACTOR = 1.5
BLOCK, DRAFTED = Case("routing"), Case("routing", shared=1)
HASHED = engine.DEEPSEEK | {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "num_hash_layers": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 0,
    "routed_scaling_factor": FACTOR,
    "swiglu_limit": 10.0,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 32,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 2,
    "index_head_dim": 128,
    "index_n_heads": 4,
    "index_topk": 64,
    "sliding_window": 32,
    "compress_rope_theta": 160000,
    "compress_ratios": [0],
}
WITH_DRAFT = engine.DEEPSEEK | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 1,
    "topk_method": "greedy",
}


def table() -> torch.Tensor:
    """int32 [vocabulary, K]: distinct experts of each token."""
    source = torch.Generator().manual_seed(7)
    return torch.rand(VOCABULARY, EXPERTS, generator=source).topk(TOPK, dim=-1).indices.to(torch.int32)


def ids_for(tokens: int) -> torch.Tensor:
    """int64 [T], token ids of a step."""
    return torch.randint(0, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(tokens))


def run(rank: "Rank") -> dict[str, Any]:
    """Rows of a layer with a table, and of a main and a draft layer; and the operator's calls."""
    boundary = Boundary()
    return {"table": _by_table(rank, boundary), "draft": _draft(rank, boundary)}


def _config(rank: "Rank", name: str, changes: dict[str, Any], **options: Any) -> Any:
    folder = engine.Model(changes=changes).write(rank.own_folder(name))
    config = engine.make_config(folder, quantization="megamoe", tokens=LIMIT, **options)
    if torch.distributed.is_initialized():
        engine.renew_state(config)
    else:
        engine.start_worker(config, rank.number, rank.meeting_point)
    return config


def _by_table(rank: "Rank", boundary: Boundary) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers import fused_moe
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm_ascend.models.deepseek_v4 import model

    start = len(boundary.events)
    config = _config(rank, "table", HASHED)
    engine.set_capacity(config)
    hf_config = config.model_config.hf_config
    hf_config.n_shared_experts = None  # how this class spells none
    # vllm-ascend replaces the factory in modules that are imported later; this one may have been there before.
    factory = patch.object(model, "FusedMoEFactory", fused_moe.FusedMoEFactory)
    with factory, set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
        block = model.DeepseekV4MoE(hf_config, config.parallel_config, config.quant_config, prefix=engine.PREFIX)
    block.gate.tid2eid.data.copy_(table())
    engine.load(block, checkpoint(BLOCK))
    engine.finish_loading(config, block)
    rows = {}
    for n in TOKENS:
        ids = ids_for(n)
        rows[n] = engine.forward(config, lambda x, ids=ids: block(x, ids), rows_for("table", n, HIDDEN))
    return {"rows": rows, "events": boundary.since(start), "method": type(block.experts._quant_method).__name__}


def _draft(rank: "Rank", boundary: Boundary) -> dict[str, Any]:
    from vllm.config import replace, set_current_vllm_config
    from vllm.model_executor.models.deepseek_v2 import DeepseekV2MoE
    from vllm.utils.torch_utils import set_default_torch_dtype

    start = len(boundary.events)
    config = _config(rank, "draft", WITH_DRAFT, speculative_config={"method": "mtp", "num_speculative_tokens": 1})
    engine.set_capacity(config)
    draft_config = replace(config, model_config=config.speculative_config.draft_model_config)
    answer: dict[str, Any] = {}
    for name, own, prefix in (("main", config, engine.PREFIX), ("draft", draft_config, "model.layers.1.mtp_block.mlp")):
        with set_current_vllm_config(own), set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
            hf_config = config.model_config.hf_config
            # The factor goes onto the output, as the decoder layer of this model has it.
            block = DeepseekV2MoE(
                hf_config, own.parallel_config, own.quant_config, prefix=prefix, apply_routed_scale_to_output=True
            )
        engine.load(block, checkpoint(DRAFTED))
        engine.finish_loading(own, block)
        options = {"is_draft_model": True} if name == "draft" else {}
        answer[name] = {n: engine.forward(config, block, rows_for("draft", n, HIDDEN), **options) for n in TOKENS}
        experts = block.experts.routed_experts
        answer[f"{name} plan"] = [experts.mega_moe.plan.facts.draft, experts.mega_moe.plan.communicator]
        answer[f"{name} kind"] = type(experts.quant_method).__name__
    return answer | {"events": boundary.since(start), "gate": tensor_for("gate.weight", (1,), torch.float32)}
