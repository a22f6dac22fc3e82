"""Attention that one family alone has: DeepSeek-V4 compresses, MiniMax-M3 chooses blocks, Gemma-4 has two widths.

Shapes: transformers 5.19's deepseek_v4 and gemma4, vLLM 0.32's minimax_m3.
"""

from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.whole.attention import Attention, grouped, linear, plain
from vllm_megamoe.plan.whole.tensors import Cache, Tensors


def deepseek_v4(keys: Keys, layer: int) -> Attention | None:
    """One key-value head that is key and value in one, a window, and compressed entries for what lies behind it.

    `compress_ratios` has an entry for each layer: 0 for the window alone, 4 for compressed entries with an indexer that
    chooses `index_topk` of them, 128 for heavily compressed ones. Around it stand hyper-connections (`hc_mult`).
    """
    hidden, heads, width = keys.integer("hidden_size"), keys.integer("num_attention_heads"), keys.integer("head_dim")
    rank, groups, out_rank = keys.integer("q_lora_rank"), keys.integer("o_groups"), keys.integer("o_lora_rank")
    ratios, window = keys.items("compress_ratios"), keys.integer("sliding_window", default=128)
    if not hidden or not heads or not rank or not groups:
        return None
    ratio = ratios[layer] if layer < len(ratios) else 0
    tensors = [
        linear("attn.wq_a", hidden, rank, "whole"),
        linear("attn.wq_b", rank, heads * width),
        linear("attn.wkv", hidden, width, "whole"),
        linear("attn.wo_a", heads * width, out_rank),
        linear("attn.wo_b", groups * out_rank, hidden),
        plain(rank + width + heads),
        *_hyper_connections(hidden, keys.integer("hc_mult", default=4)),
    ]
    caches = [Cache(width, window=window, score=2 * heads * width)]
    if not ratio:
        return tensors, caches
    # Entries of the finer compression overlap: each has two halves.
    halves = 2 if ratio < 128 else 1
    tensors += _compressor(hidden, halves * width, width, ratio)
    index_heads, index_width = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    chosen = keys.integer("index_topk") if halves == 2 else 0
    caches.append(Cache(width, stride=ratio, score=2 * heads * width, most_scored=chosen))
    if halves == 2:
        tensors += _compressor(hidden, halves * index_width, index_width, ratio)
        tensors += [linear("attn.indexer.wq_b", rank, index_heads * index_width, "whole"), plain(hidden * index_heads)]
        caches.append(Cache(index_width, stride=ratio, score=index_heads * index_width))
    return tensors, caches


def _compressor(hidden: int, inner: int, width: int, ratio: int) -> list[Tensors]:
    return [
        linear("attn.compressor.wkv", hidden, inner, "whole"),
        linear("attn.compressor.wgate", hidden, inner, "whole"),
        plain(ratio * inner + width),
    ]


def _hyper_connections(hidden: int, streams: int) -> list[Tensors]:
    mixes = streams * (streams + 2)
    return [plain(2 * (mixes * streams * hidden + mixes + 3))]


def minimax_m3(keys: Keys, layer: int) -> Attention | None:
    """Grouped-query attention; where `sparse_attention_freq` marks a layer, an indexer chooses blocks of keys."""
    found = grouped("head")(keys, layer)
    sparse = keys.values.get("sparse_attention_config")
    if found is None or not isinstance(sparse, dict):
        return found
    marks = sparse.get("sparse_attention_freq") or ()
    if layer < len(marks) and not marks[layer]:
        return found
    tensors, caches = found
    inner = Keys(sparse)
    hidden, kv_heads = keys.integer("hidden_size"), keys.integer("num_key_value_heads")
    heads, width = inner.integer("sparse_num_index_heads"), inner.integer("sparse_index_dim")
    tensors += [
        linear("self_attn.index_q_proj", hidden, heads * width, "kv", kv_heads),
        linear("self_attn.index_k_proj", hidden, width, "whole"),
        plain(2 * width),
    ]
    chosen = inner.integer("sparse_topk_blocks") * inner.integer("sparse_block_size")
    main = caches[0]
    return tensors, [
        Cache(main.elements, main.heads, score=main.score, most_scored=chosen),
        Cache(width, score=heads * width),
    ]


def gemma4(keys: Keys, layer: int) -> Attention | None:
    """Sliding layers of `head_dim`; full ones of `global_head_dim` whose keys are values too (`attention_k_eq_v`)."""
    kinds = keys.items("layer_types")
    if layer >= len(kinds) or kinds[layer] != "full_attention":
        return grouped("head")(keys, layer)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    width, kv_heads = keys.integer("global_head_dim"), keys.integer("num_global_key_value_heads", "num_key_value_heads")
    one = bool(keys.values.get("attention_k_eq_v"))
    tensors = [
        linear("self_attn.q_proj", hidden, heads * width),
        linear("self_attn.k_proj", hidden, kv_heads * width, "kv", kv_heads),
        linear("self_attn.o_proj", heads * width, hidden),
        plain(2 * width),
    ]
    if not one:
        tensors.append(linear("self_attn.v_proj", hidden, kv_heads * width, "kv", kv_heads))
    return tensors, [Cache(2 * kv_heads * width, kv_heads, score=2 * heads * width)]
