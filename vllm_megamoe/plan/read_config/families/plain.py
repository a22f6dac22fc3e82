"""Families whose routed experts stand alone (vLLM 0.32's model files of the same names)."""

from vllm_megamoe.plan.read_config.activations import gelu_tanh, gpt_oss, silu
from vllm_megamoe.plan.read_config.family import Family
from vllm_megamoe.plan.read_config.where import after_dense, after_num_dense, by_period, every

_SPARSE = "model.layers.{layer}.block_sparse_moe.experts"
_OWN_WIDTH = ("intermediate_size",)

FAMILIES = (
    Family(("MixtralForCausalLM",), name=_SPARSE, where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("PhiMoEForCausalLM",), name=_SPARSE, where=every, intermediate=_OWN_WIDTH, activation=silu),
    # Its shared MLP, where there is one, is no part of vLLM's MoE layer.
    Family(
        (
            "GraniteMoeForCausalLM",
            "GraniteMoeSharedForCausalLM",
            "GraniteMoeSWAForCausalLM",
            "GraniteMoeHybridForCausalLM",
        ),
        name=_SPARSE,
        where=every,
        intermediate=_OWN_WIDTH,
        activation=silu,
    ),
    Family(("MiniMaxM2ForCausalLM",), where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("OlmoeForCausalLM",), where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), where=after_dense),
    Family(
        ("GptOssForCausalLM",),
        where=every,
        intermediate=_OWN_WIDTH,
        activation=gpt_oss,
        has_bias=True,
        gate_up_interleaved=True,
    ),
    Family(
        ("Gemma4ForCausalLM",),
        name="model.layers.{layer}.experts",
        where=every,
        intermediate=("moe_intermediate_size", "expert_intermediate_size"),
        activation=gelu_tanh,
    ),
    Family(
        ("Lfm2MoeForCausalLM",),
        name="model.layers.{layer}.feed_forward.experts",
        where=after_num_dense,
        activation=silu,
    ),
    Family(
        ("JambaForCausalLM",),
        name="model.layers.{layer}.feed_forward.experts",
        where=by_period,
        intermediate=_OWN_WIDTH,
        activation=silu,
    ),
)
