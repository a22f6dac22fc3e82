"""Layers whose memory of a sequence has a fixed size: gated delta nets, Kimi's delta attention, Mamba-2; and the models
that mix them with attention.

Shapes: transformers 5.19's qwen3_next, qwen3_5, kimi_linear and nemotron_h; vLLM 0.32's kimi_k3 and mamba_utils.
"""

from typing import Any

from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.read_config.where import MOE_KINDS, hybrid_kinds
from vllm_megamoe.plan.whole.attention import Attention, AttentionOf, grouped, latent, linear, plain
from vllm_megamoe.plan.whole.tensors import Cache

_STATE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


def _state_bytes(keys: Keys, *names: str) -> int:
    """Of a number of the recurrent state; float32 where the config does not say, which is what its kernels keep."""
    said = next((str(keys.values[name]) for name in names if keys.values.get(name)), "float32")
    return _STATE_BYTES.get(said.removeprefix("torch."), 4)


def gated_delta(keys: Keys, layer: int) -> Attention | None:
    """A gated delta net (qwen3_next, qwen3_5): a state of value x key width for each value head, and a convolution."""
    hidden, kernel = keys.integer("hidden_size"), keys.integer("linear_conv_kernel_dim", default=4)
    key_heads, value_heads = keys.integer("linear_num_key_heads"), keys.integer("linear_num_value_heads")
    key, value = keys.integer("linear_key_head_dim"), keys.integer("linear_value_head_dim")
    if not value_heads or not key_heads:
        return None
    mixed, out = 2 * key_heads * key + value_heads * value, value_heads * value
    tensors = [
        linear("linear_attn.in_proj_qkv", hidden, mixed),
        linear("linear_attn.in_proj_z", hidden, out),
        linear("linear_attn.in_proj_ba", hidden, 2 * value_heads),
        linear("linear_attn.out_proj", out, hidden),
        plain(mixed * kernel + 2 * value_heads, "tensor"),
        plain(value),
    ]
    state = value_heads * key * value * _state_bytes(keys, "mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    return tensors, [Cache(state_bytes=state + 2 * mixed * (kernel - 1), state_heads=value_heads)]


def qwen_hybrid(keys: Keys, layer: int) -> Attention | None:
    """`layer_types`, else every `full_attention_interval`-th layer has attention; draft layers all have it."""
    kinds, step = keys.items("layer_types"), keys.integer("full_attention_interval", default=4)
    full = kinds[layer] == "full_attention" if layer < len(kinds) else layer >= keys.layers or (layer + 1) % step == 0
    return grouped("head", gate=True)(keys, layer) if full else gated_delta(keys, layer)


def delta_attention(settings: dict[str, Any], hidden: int) -> Attention | None:
    """Kimi's delta attention: q, k, v of one width, low-rank decay, an output gate of full or low rank."""
    keys = Keys(settings)
    heads, width, kernel = (
        keys.integer("num_heads"),
        keys.integer("head_dim"),
        keys.integer("short_conv_kernel_size", default=4),
    )
    if not heads or not width:
        return None
    wide = heads * width
    tensors = [
        linear("self_attn.q_proj", hidden, 3 * wide),
        linear("self_attn.f_a_proj", hidden, width, "whole"),
        linear("self_attn.f_b_proj", width, wide),
        linear("self_attn.b_proj", hidden, heads),
        linear("self_attn.o_proj", wide, hidden),
        plain(3 * wide * kernel + wide + heads, "tensor"),
        plain(width),
    ]
    if settings.get("use_full_rank_gate"):
        tensors.append(linear("self_attn.g_proj", hidden, wide))
    else:
        tensors += [linear("self_attn.g_a_proj", hidden, width, "whole"), linear("self_attn.g_b_proj", width, wide)]
    state = heads * width * width * 4 + 2 * 3 * wide * (kernel - 1)
    return tensors, [Cache(state_bytes=state, state_heads=heads)]


def kimi_linear(keys: Keys, layer: int) -> Attention | None:
    """`linear_attn_config.full_attn_layers` counts from 1; its layers have latent attention, the others KDA."""
    settings = keys.values.get("linear_attn_config")
    full = settings.get("full_attn_layers", ()) if isinstance(settings, dict) else ()
    if not isinstance(settings, dict) or layer + 1 in full or layer >= keys.layers:
        return latent(gate="mla_use_output_gate")(keys, layer)
    return delta_attention(settings, keys.integer("hidden_size"))


def mamba2(keys: Keys, layer: int) -> Attention | None:
    """Mamba-2 (nemotron_h): a state of head width x state size for each head, and a convolution with a bias."""
    heads, width = keys.integer("mamba_num_heads"), keys.integer("mamba_head_dim")
    groups, state, kernel = keys.integer("n_groups"), keys.integer("ssm_state_size"), keys.integer("conv_kernel")
    if not heads or not width:
        return None
    hidden, inner = keys.integer("hidden_size"), heads * width
    mixed = inner + 2 * groups * state
    tensors = [
        linear("mixer.in_proj", hidden, inner + mixed + heads),
        linear("mixer.out_proj", inner, hidden),
        plain(mixed * (kernel + (1 if keys.values.get("use_conv_bias", True) else 0)) + 3 * heads + inner, "tensor"),
    ]
    kept = inner * state * _state_bytes(keys, "mamba_ssm_cache_dtype") + 2 * mixed * (kernel - 1)
    return tensors, [Cache(state_bytes=kept, state_heads=heads)]


_NEMOTRON: dict[str, AttentionOf] = {"M": mamba2, "mamba": mamba2, "*": grouped(), "attention": grouped()}
_DENSE_KINDS = ("-", "mlp")


def nemotron_h(keys: Keys, layer: int) -> Attention | None:
    """`layers_block_type` or `hybrid_override_pattern`: each layer is one thing; MoE and MLP layers have no attention.

    The draft's pattern (`mtp_hybrid_override_pattern`) has an attention layer before its MoE layer: counted with it.
    """
    kinds = hybrid_kinds(keys)
    if layer >= len(kinds):
        return grouped()(keys, layer)
    kind = kinds[layer]
    if kind in MOE_KINDS or kind in _DENSE_KINDS:
        return [], []
    return _NEMOTRON[kind](keys, layer) if kind in _NEMOTRON else None
