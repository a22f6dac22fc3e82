"""Model families as a checkpoint shows them: config.json, names of experts, and the tensors beside the experts.

Config keys are those of the fixtures and of the published configs, cut to small sizes. Names: facts/checkpoints.md 3.1.
`complete` families carry every tensor of their model; of the others only router and norms are written, because their
attention is another's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vllm_megamoe.testing.formats.address import Shape

VOCABULARY, HEADS, KV_HEADS, HEAD = 512, 4, 2, 32


@dataclass(frozen=True)
class Family:
    """One model type.

    Attributes:
        model_type, architecture: as config.json says.
        layer: prefix of a decoder layer; {} is its number.
        block: of the MoE block below the layer.
        expert: of an expert below the block; {} its number; empty for all in one tensor.
        names: gate, up, down.
        shared: of the shared expert below the block; empty without one.
        first: number of the first MoE layer (dense before).
        draft: prefix of the draft layer; {} is the number of decoder layers.
        sizes: own names of the config's sizes, and further keys.
        text: whether the text model's keys stand in text_config.
    """

    model_type: str
    architecture: str
    layer: str = "model.layers.{}."
    block: str = "mlp."
    expert: str = "experts.{}."
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared: str = ""
    first: int = 0
    draft: str = ""
    sizes: Mapping[str, Any] | None = None
    text: bool = False
    complete: bool = False

    def config(self, shape: Shape, layers: int, drafts: int) -> dict[str, Any]:
        """config.json without quantization_config."""
        intermediate, experts = EXPERT_KEYS.get(self.model_type, ("moe_intermediate_size", "num_experts"))
        body = {
            "model_type": self.model_type,
            "hidden_size": shape.hidden,
            "intermediate_size": 2 * shape.intermediate,
            intermediate: shape.intermediate,
            experts: shape.experts,
            "num_experts_per_tok": 2,
            "num_hidden_layers": layers + self.first,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            **(self.sizes or {}),
        }
        if self.model_type == "qwen2_moe":
            body["shared_expert_intermediate_size"] = shape.intermediate
        if drafts:
            body["num_nextn_predict_layers"] = drafts
        top = {"architectures": [self.architecture], "model_type": self.model_type}
        return top | ({"text_config": body | {"model_type": f"{self.model_type}_text"}} if self.text else body)

    def beside(self, shape: Shape, layers: list[int], router: bool = True) -> dict[str, torch.Tensor]:
        """Tensors of the decoder that are no experts, in BF16 and small numbers."""
        random = torch.Generator().manual_seed(11)
        tensors: dict[str, torch.Tensor] = {}

        def put(name: str, *size: int) -> None:
            if len(size) == 1:
                tensors[name] = torch.ones(size, dtype=torch.bfloat16)
            else:
                tensors[name] = (torch.randn(*size, generator=random) * size[-1] ** -0.5).bfloat16()

        for layer in layers:
            before, block = self.layer.format(layer), self.layer.format(layer) + self.block
            if router:
                put(
                    block + ("router.weight" if self.model_type == "gpt_oss" else "gate.weight"),
                    shape.experts,
                    shape.hidden,
                )
            put(before + "input_layernorm.weight", shape.hidden)
            put(before + "post_attention_layernorm.weight", shape.hidden)
            if self.complete:
                for name, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
                    put(f"{before}self_attn.{name}.weight", heads * HEAD, shape.hidden)
                put(before + "self_attn.o_proj.weight", shape.hidden, HEADS * HEAD)
                if self.model_type == "qwen3_moe":
                    put(before + "self_attn.q_norm.weight", HEAD)
                    put(before + "self_attn.k_norm.weight", HEAD)
        root = self.layer.split("layers")[0]
        put(root + "embed_tokens.weight", VOCABULARY, shape.hidden)
        put(root + "norm.weight", shape.hidden)
        put("lm_head.weight", VOCABULARY, shape.hidden)
        return tensors


EXPERT_KEYS = {
    "mixtral": ("intermediate_size", "num_local_experts"),
    "minimax_m2": ("intermediate_size", "num_local_experts"),
    "minimax_m3": ("intermediate_size", "num_local_experts"),
    "gpt_oss": ("intermediate_size", "num_local_experts"),
    "llama4": ("intermediate_size", "num_local_experts"),
    "deepseek_v3": ("moe_intermediate_size", "n_routed_experts"),
    "deepseek_v4": ("moe_intermediate_size", "n_routed_experts"),
    "kimi_k25": ("moe_intermediate_size", "n_routed_experts"),
    "step3p5": ("moe_intermediate_size", "moe_num_experts"),
}
"""model_type -> its keys of the experts' width and count."""

_SHORT = ("w1", "w3", "w2")
_DEEPSEEK = {
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}

QWEN3 = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    complete=True,
    sizes={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
QWEN2 = Family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    shared="shared_expert.",
    sizes={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
MIXTRAL = Family("mixtral", "MixtralForCausalLM", block="block_sparse_moe.", names=_SHORT, complete=True)
MINIMAX = Family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    block="block_sparse_moe.",
    names=_SHORT,
    sizes={"scoring_func": "sigmoid", "use_routing_bias": True, "shared_intermediate_size": 0},
)
MINIMAX_M3 = Family(
    "minimax_m3",
    "MiniMaxM3ForCausalLM",
    block="block_sparse_moe.",
    names=_SHORT,
    sizes={"hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "n_shared_experts": 0},
)
DEEPSEEK = Family(
    "deepseek_v3", "DeepseekV3ForCausalLM", shared="shared_experts.", first=1, draft="model.layers.{}.", sizes=_DEEPSEEK
)
KIMI = Family(
    "kimi_k25",
    "KimiK25ForConditionalGeneration",
    layer="language_model.model.layers.{}.",
    shared="shared_experts.",
    first=1,
    sizes=_DEEPSEEK,
    text=True,
)
DEEPSEEK_V4 = Family(
    "deepseek_v4",
    "DeepseekV4ForCausalLM",
    layer="layers.{}.",
    block="ffn.",
    names=_SHORT,
    shared="shared_experts.",
    draft="mtp.0.",
    sizes={
        "n_shared_experts": 1,
        "expert_dtype": "fp4",
        "swiglu_limit": 10.0,
        "num_hash_layers": 0,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.5,
    },
)
GPT_OSS = Family("gpt_oss", "GptOssForCausalLM", expert="", sizes={"swiglu_limit": 7.0})
QWEN35 = Family(
    "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", layer="model.language_model.layers.{}.", expert="", text=True
)
QWEN3_VL = Family(
    "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", layer="model.language_model.layers.{}.", expert="", text=True
)
LLAMA4 = Family(
    "llama4",
    "Llama4ForConditionalGeneration",
    layer="language_model.model.layers.{}.",
    block="feed_forward.",
    expert="",
    text=True,
    sizes={"interleave_moe_layer_step": 1},
)
STEP = Family("step3p5", "Step3p5ForCausalLM", block="moe.", expert="")
