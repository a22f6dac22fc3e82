"""The attention of one layer as tensors and caches: grouped-query and latent attention, with what some families add.

Shapes are those of transformers 5.19's model files, which tests compare; how they spread over ranks is vLLM 0.32's.
"""

from collections.abc import Callable
from typing import Literal

from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.whole.tensors import Cache, Part, Spread, Tensors

Attention = tuple[list[Tensors], list[Cache]]
AttentionOf = Callable[[Keys, int], Attention | None]
"""From the config and a layer's number to its attention; None where the config does not say it."""

QkNorm = Literal["none", "head", "all"]
"""RMS norms of queries and keys: none, one vector for all heads, or one as wide as all heads together."""

_PART: Part = "attention"


def linear(name: str, rows: int, columns: int, spread: Spread = "tensor", heads: int = 0) -> Tensors:
    """A matrix that a quantisation may hold."""
    return Tensors(_PART, rows * columns, spread, name, heads)


def plain(elements: int, spread: Spread = "whole") -> Tensors:
    """Numbers that stay floats: norms, biases, sinks, convolutions."""
    return Tensors(_PART, elements, spread)


def grouped(
    qk_norm: QkNorm = "none", *, bias: str = "attention_bias", gate: bool = False, sinks: bool = False
) -> AttentionOf:
    """Grouped-query attention.

    Args:
        bias: key that says whether q, k and v have biases; `always` for families whose code has them in all four.
        gate: whether `attn_output_gate` doubles the queries (qwen3_next, qwen3_5).
        sinks: whether each head has a sink (gpt_oss).
    """

    def of(keys: Keys, layer: int) -> Attention | None:
        hidden, heads = keys.integer("hidden_size", "d_model"), keys.integer("num_attention_heads", "n_heads")
        if not heads or not hidden:
            return None
        kv_heads = keys.integer("num_key_value_heads", default=heads)
        width = keys.integer("head_dim", default=hidden // heads)
        gated = gate and keys.values.get("attn_output_gate", True)
        queries, values = heads * width, kv_heads * width
        tensors = [
            linear("self_attn.q_proj", hidden, queries * (2 if gated else 1)),
            linear("self_attn.k_proj", hidden, values, "kv", kv_heads),
            linear("self_attn.v_proj", hidden, values, "kv", kv_heads),
            linear("self_attn.o_proj", queries, hidden),
        ]
        if bias == "always" or keys.values.get(bias):
            tensors.append(plain(queries + 2 * values + (hidden if bias == "always" else 0)))
        if qk_norm != "none":
            tensors.append(plain(2 * width if qk_norm == "head" else queries + values))
        if sinks:
            tensors.append(plain(heads))
        return tensors, [Cache(2 * values, kv_heads, window=window_of(keys, layer), score=2 * heads * width)]

    return of


def window_of(keys: Keys, layer: int) -> int:
    """Tokens that a layer keeps, 0 for all, as `layer_types` says (gpt_oss, gemma, llama4)."""
    kinds = keys.items("layer_types")
    kind = kinds[layer] if layer < len(kinds) else ""
    if kind == "sliding_attention":
        return keys.integer("sliding_window")
    return keys.integer("attention_chunk_size") if kind == "chunked_attention" else 0


Indexed = Callable[[Keys, int], bool]
"""Whether a layer has an indexer of its own."""


def every_layer(keys: Keys, layer: int) -> bool:
    """DeepSeek-V3.2: each."""
    return True


def by_index_frequency(keys: Keys, layer: int) -> bool:
    """GLM-5: layers between two of the `index_topk_freq`-th ones take the choice of the last indexer."""
    step, pattern = max(keys.integer("index_topk_freq", default=1), 1), keys.values.get("index_topk_pattern")
    if isinstance(pattern, str | list | tuple) and layer < len(pattern):
        return str(pattern[layer])[:1].upper() == "F"
    offset = keys.integer("index_skip_topk_offset", default=2)
    return max(layer - offset + 1, 0) % step == 0


def latent(indexed: Indexed | None = None, gate: str = "") -> AttentionOf:
    """Multi-head latent attention (deepseek_v2): every rank keeps the latent of all tokens.

    Args:
        indexed: whether a layer has the indexer of sparse attention (deepseek_v32, glm_moe_dsa).
        gate: key that says whether the output has a gate (kimi_k3).
    """

    def of(keys: Keys, layer: int) -> Attention | None:
        hidden, heads, latent_width = (
            keys.integer("hidden_size"),
            keys.integer("num_attention_heads"),
            keys.integer("kv_lora_rank"),
        )
        if not hidden or not heads or not latent_width:
            return None
        rank, rope = keys.integer("q_lora_rank"), keys.integer("qk_rope_head_dim")
        nope, value = keys.integer("qk_nope_head_dim"), keys.integer("v_head_dim")
        queries = heads * (nope + rope)
        tensors = [
            linear("self_attn.q_a_proj", hidden, rank, "whole"),
            linear("self_attn.q_b_proj", rank, queries),
            plain(rank),
        ]
        if not rank:
            tensors = [linear("self_attn.q_proj", hidden, queries)]
        tensors += [
            linear("self_attn.kv_a_proj_with_mqa", hidden, latent_width + rope, "whole"),
            linear("self_attn.kv_b_proj", latent_width, heads * (nope + value)),
            linear("self_attn.o_proj", heads * value, hidden),
            plain(latent_width),
        ]
        if keys.values.get("attention_bias"):
            tensors.append(plain((rank if rank else 0) + latent_width + rope + hidden))
        if gate and keys.values.get(gate):
            tensors.append(linear("self_attn.g_proj", hidden, heads * value))
        sparse = keys.integer("index_topk") if indexed is not None else 0
        caches = [Cache(latent_width + rope, score=heads * (2 * latent_width + rope), most_scored=sparse)]
        if indexed is not None and indexed(keys, layer):
            index_heads, index_width = keys.integer("index_n_heads"), keys.integer("index_head_dim")
            tensors += [
                linear("self_attn.indexer.wq_b", rank, index_heads * index_width, "whole"),
                linear("self_attn.indexer.wk", hidden, index_width, "whole"),
                plain(2 * index_width),
                plain(hidden * index_heads),
            ]
            caches.append(Cache(index_width, score=index_heads * index_width))
        return tensors, caches

    return of


def guessed(keys: Keys, layer: int) -> Attention | None:
    """Of a family without a row: latent attention where its keys are there, else grouped-query."""
    return latent()(keys, layer) if keys.integer("kv_lora_rank") else grouped()(keys, layer)
