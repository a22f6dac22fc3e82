"""Which decoder layers are MoE layers: one function for each way in which configs say it.

Source of each rule: the model file of vLLM 0.32 that is named beside it.
"""

from collections.abc import Callable

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.read_config.keys import Keys

Where = Callable[[Keys, int], bool]
"""Whether a layer of that number is a MoE layer; numbers beyond the decoder are draft layers."""

MOE_KINDS = ("E", "moe")
"""How hybrid models mark a MoE layer, as a letter of a pattern or as a word of a list (nemotron_h)."""


def every(keys: Keys, layer: int) -> bool:
    """All of them (mixtral, gpt_oss, minimax_m2)."""
    return True


def after_dense(keys: Keys, layer: int) -> bool:
    """`first_k_dense_replace`, then every `moe_layer_freq`-th, or as that list says (deepseek_v2, kimi_k3, mimo_v2)."""
    if keys.is_list("moe_layer_freq"):
        marks = keys.per_layer("moe_layer_freq", keys.items("moe_layer_freq"))
        return bool(marks[layer]) if layer < len(marks) else True
    return layer >= keys.integer("first_k_dense_replace") and layer % keys.step("moe_layer_freq") == 0


def after_dense_only(keys: Keys, layer: int) -> bool:
    """`first_k_dense_replace` alone (glm4_moe, hy_v3, bailing_moe)."""
    return layer >= keys.integer("first_k_dense_replace")


def after_first(keys: Keys, layer: int) -> bool:
    """As `after_dense_only`, where one dense layer is the default (param2moe, sarvam: its step counts from there)."""
    first = keys.integer("first_k_dense_replace", default=1)
    return layer >= first and (layer - first) % keys.step("moe_layer_freq") == 0


def after_num_dense(keys: Keys, layer: int) -> bool:
    """`num_dense_layers` (afmoe, lfm2_moe)."""
    return layer >= keys.integer("num_dense_layers")


def by_step(keys: Keys, layer: int) -> bool:
    """`decoder_sparse_step` and `mlp_only_layers` (qwen2_moe, qwen3_moe, qwen3_next)."""
    step = keys.integer("decoder_sparse_step", default=1)
    return layer not in keys.items("mlp_only_layers") and step > 0 and (layer + 1) % step == 0


def by_interleave(keys: Keys, layer: int) -> bool:
    """`interleave_moe_layer_step` (llama4)."""
    step = keys.integer("interleave_moe_layer_step", default=1)
    return step > 0 and (layer + 1) % step == 0


def by_interval(keys: Keys, layer: int) -> bool:
    """`moe_layer_interval` between `moe_layer_start_index` and `moe_layer_end_index` (ernie45_moe)."""
    end = keys.integer("moe_layer_end_index", default=-1)
    inside = keys.integer("moe_layer_start_index") <= layer and (end < 0 or layer <= end)
    return inside and (layer + 1) % keys.step("moe_layer_interval") == 0


def by_enumeration(keys: Keys, layer: int) -> bool:
    """`moe_layers_enum`, numbers with commas; without it all but the first (step3_text, step3p5)."""
    if not keys.has("moe_layers_enum"):
        return 1 <= layer < keys.integer("num_hidden_layers")
    text = keys.text("moe_layers_enum")
    try:
        return layer in {int(number) for number in text.split(",") if number.strip()}
    except ValueError as error:
        raise ConfigError(
            f"config.json: moe_layers_enum = {text!r}; expected layer numbers with commas, such as '3,4,5'. Correct it."
        ) from error


def by_type(keys: Keys, layer: int) -> bool:
    """`mlp_layer_types`, whose last entry holds for draft layers (exaone_moe, cohere2_moe, glm5next)."""
    kinds = keys.per_layer("mlp_layer_types", keys.items("mlp_layer_types"))
    return not kinds or kinds[min(layer, len(kinds) - 1)] == "sparse"


def by_type_else_all_but_first(keys: Keys, layer: int) -> bool:
    """`mlp_layer_types`; without it the first layer is dense (hy_v4, laguna: their config classes fill it so)."""
    return by_type(keys, layer) if keys.has("mlp_layer_types") else layer > 0


def by_period(keys: Keys, layer: int) -> bool:
    """`expert_layer_period` and `expert_layer_offset` (jamba)."""
    period = keys.step("expert_layer_period", default=2)
    return layer % period == keys.integer("expert_layer_offset", default=1)


def by_pattern(keys: Keys, layer: int) -> bool:
    """`layers_block_type` or the letter E of `hybrid_override_pattern` (nemotron_h)."""
    name = "layers_block_type" if keys.items("layers_block_type") else "hybrid_override_pattern"
    kinds = keys.per_layer(name, hybrid_kinds(keys))
    return layer < len(kinds) and kinds[layer] in MOE_KINDS


def hybrid_kinds(keys: Keys) -> list[str]:
    """The kind of each layer of a hybrid model, as its config names or abbreviates it."""
    return list(keys.items("layers_block_type")) or list(keys.text("hybrid_override_pattern"))
