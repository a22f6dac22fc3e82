"""Unquantised experts: one matrix per projection, or three-dimensional tensors of all experts in four layouts.

Source: facts/checkpoints.md 3.1. H hidden, I width of an expert, E experts.

* per expert: `gate_proj.weight` [I, H], `up_proj.weight` [I, H], `down_proj.weight` [H, I]; or w1, w3, w2.
* halves (Qwen3.5): `gate_up_proj` [E, 2I, H], gate in the first I rows; `down_proj` [E, H, I].
* transposed halves (Qwen3-VL-MoE, Llama4): `gate_up_proj` [E, H, 2I], gate in the first I columns; `down_proj`
  [E, I, H].
* transposed, interleaved (gpt-oss): `gate_up_proj` [E, H, 2I], gate in the even columns, up in the odd ones, with
  `gate_up_proj_bias` [E, 2I]; `down_proj` [E, I, H] with `down_proj_bias` [E, H].
* per projection (Step-3.5): `moe.gate_proj.weight` [E, I, H], `up_proj` [E, I, H], `down_proj` [E, H, I].

Halves and transposed halves have one shape where H = 2I: the family decides, never the shape.
"""

from formats.readings.experts import Expert, Projection
from formats.readings.names import names_of
from formats.readings.numbers import F64
from formats.readings.store import Store

FLOATS = ("BF16", "F16", "F32")


def linear(store: Store, prefix: str) -> Projection:
    """One matrix [N, K]."""
    return Projection(store.numbers(prefix + "weight", *FLOATS))


def halves(store: Store, layer: int | str) -> list[Expert]:
    """gate_up_proj [E, 2I, H]: gate in the first I rows."""
    gate_up, down = _fused(store, layer)
    half = gate_up.shape[1] // 2
    return [
        Expert(Projection(gate_up[e, :half]), Projection(gate_up[e, half:]), Projection(down[e]))
        for e in range(len(down))
    ]


def transposed_halves(store: Store, layer: int | str) -> list[Expert]:
    """gate_up_proj [E, H, 2I]: gate in the first I columns."""
    gate_up, down = _fused(store, layer)
    half = gate_up.shape[2] // 2
    return [
        Expert(Projection(gate_up[e, :, :half].T), Projection(gate_up[e, :, half:].T), Projection(down[e].T))
        for e in range(len(down))
    ]


def interleaved(store: Store, layer: int | str) -> list[Expert]:
    """gate_up_proj [E, H, 2I]: gate in the even columns, up in the odd ones; biases beside."""
    gate_up, down = _fused(store, layer)
    block = names_of(store).prefix(layer) + "experts."
    bias = store.numbers(block + "gate_up_proj_bias", "BF16")
    down_bias = store.numbers(block + "down_proj_bias", "BF16")
    return [
        Expert(
            Projection(gate_up[e, :, 0::2].T, bias=bias[e, 0::2]),
            Projection(gate_up[e, :, 1::2].T, bias=bias[e, 1::2]),
            Projection(down[e].T, bias=down_bias[e]),
        )
        for e in range(len(down))
    ]


def per_projection(store: Store, layer: int | str) -> list[Expert]:
    """moe.gate_proj.weight [E, I, H] and its two sisters."""
    block = names_of(store).prefix(layer)
    gate, up, down = (
        store.numbers(f"{block}{projection}.weight", *FLOATS) for projection in ("gate_proj", "up_proj", "down_proj")
    )
    return [Expert(Projection(gate[e]), Projection(up[e]), Projection(down[e])) for e in range(len(gate))]


def _fused(store: Store, layer: int | str) -> tuple[F64, F64]:
    block = names_of(store).prefix(layer) + "experts."
    return store.numbers(block + "gate_up_proj", *FLOATS), store.numbers(block + "down_proj", *FLOATS)


FUSED = {
    "qwen3_5_moe": halves,
    "qwen3_vl_moe": transposed_halves,
    "llama4": transposed_halves,
    "gpt_oss": interleaved,
    "step3p5": per_projection,
}
"""model_type -> reading of a layer, for families that store all experts in one tensor."""
