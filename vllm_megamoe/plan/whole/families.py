"""What each family's layers have beside their routed experts: one row for each, by the name of its class.

A family without a row is read by common key names; its norms are left out, and the count is called about right.
"""

from dataclasses import dataclass

from vllm_megamoe.plan.read_config.architectures import MTP_CLASSES, WRAPPERS
from vllm_megamoe.plan.whole import recurrent, special
from vllm_megamoe.plan.whole.attention import (
    AttentionOf,
    by_index_frequency,
    every_layer,
    grouped,
    guessed,
    latent,
)


@dataclass(frozen=True, slots=True)
class Body:
    """How a family's layers are built.

    Attributes:
        attention: of a layer.
        norms: vectors as wide as the model in each layer.
        dense: key names of a dense layer's MLP width.
        matrices: of a dense MLP, 2 without a gate.
        beside: whether every layer has a dense MLP beside its experts (gemma4).
        router_bias: whether the router has a bias that is a parameter (gpt_oss).
        expert_bias: whether the experts have biases.
        router_extra: vectors beside the router's matrix: of the model's width, of the experts' number (gemma4).
        sure: whether a test compares the count with another implementation.
    """

    attention: AttentionOf
    norms: int = 2
    dense: tuple[str, ...] = ("intermediate_size",)
    matrices: int = 3
    beside: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    router_extra: tuple[int, int] = (0, 0)
    sure: bool = True


_QWEN3 = Body(grouped("head"))
_LATENT = Body(latent())
_SPARSE = Body(latent(every_layer))

BODIES: dict[str, Body] = {
    "MixtralForCausalLM": Body(grouped()),
    "OlmoeForCausalLM": Body(grouped("all")),
    "GraniteMoeForCausalLM": Body(grouped()),
    "Qwen2MoeForCausalLM": Body(grouped(bias="qkv_bias")),
    "Qwen3MoeForCausalLM": _QWEN3,
    "Qwen3NextForCausalLM": Body(recurrent.qwen_hybrid),
    "Qwen3_5MoeForCausalLM": Body(recurrent.qwen_hybrid),
    "MiniMaxM2ForCausalLM": Body(grouped("all")),
    "MiniMaxM3SparseForCausalLM": Body(special.minimax_m3, dense=("dense_intermediate_size",), sure=False),
    "MiniMaxM3ForCausalLM": Body(special.minimax_m3, dense=("dense_intermediate_size",), sure=False),
    "GptOssForCausalLM": Body(grouped(bias="always", sinks=True), router_bias=True, expert_bias=True),
    "Gemma4ForCausalLM": Body(special.gemma4, norms=7, beside=True, router_extra=(1, 1)),
    "Llama4ForCausalLM": Body(grouped(), dense=("intermediate_size_mlp",)),
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "MistralLarge3ForCausalLM": _LATENT,
    "Glm4MoeLiteForCausalLM": _LATENT,
    "DeepseekV32ForCausalLM": _SPARSE,
    "GlmMoeDsaForCausalLM": Body(latent(by_index_frequency)),
    "Glm4MoeForCausalLM": Body(grouped()),
    "DeepseekV4ForCausalLM": Body(special.deepseek_v4),
    "KimiLinearForCausalLM": Body(recurrent.kimi_linear, sure=False),
    "NemotronHForCausalLM": Body(recurrent.nemotron_h, norms=1, matrices=2),
}
_GUESSED = Body(guessed, norms=0, sure=False)


def body_of(*architectures: str) -> Body:
    """The row of the first of these classes that has one, else the one of common key names."""
    for name in architectures:
        found = BODIES.get(WRAPPERS.get(name) or MTP_CLASSES.get(name) or name)
        if found is not None:
            return found
    return _GUESSED
