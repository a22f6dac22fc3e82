"""The layers that are timed: the operator in all six use cases, and vLLM's own."""

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import to_operands
from vllm_megamoe.numerics.int8 import quantise_weight
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe
from vllm_megamoe.ops.api import bind
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

HIDDEN, WIDTH, NUM_EXPERTS, TOPK, MAX_ROWS = 2048, 1024, 32, 8, 1024

Layer = Callable[[Tensor, Tensor, Tensor], object]
"""x [T, H], topk_ids [T, K], topk_weights [T, K] -> rows."""


def dense_weights() -> tuple[Tensor, Tensor]:
    """BF16 [E, 2I, H] and [E, H, I]; the same in every run."""
    g = torch.Generator().manual_seed(0)
    w13 = torch.randn(NUM_EXPERTS, 2 * WIDTH, HIDDEN, generator=g) / HIDDEN**0.5
    w2 = torch.randn(NUM_EXPERTS, HIDDEN, WIDTH, generator=g) / WIDTH**0.5
    return w13.to(torch.bfloat16), w2.to(torch.bfloat16)


def vllm_layer() -> Layer:
    """vLLM's fused CPU kernel for BF16 experts, weights prepacked as vLLM does at load."""
    from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight

    isa = "amx" if torch.cpu._is_amx_tile_supported() else "vec"
    w13, w2 = (cpu_prepack_moe_weight(w, isa) for w in dense_weights())

    def run(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out = torch.empty_like(x)
        cpu_fused_moe(out, x, w13, w2, None, None, weights, ids, "silu", isa)
        return out

    return run


def operator_layers() -> dict[str, Layer]:
    """One layer of each use case, weights in the operator's layouts; built one after the other."""
    return {f"mega_moe twin, {use_case.value}": _operator(use_case) for use_case in UseCase}


def expert_bytes(name: str) -> int:
    """Weights of one expert of a layer, by its name in the table; scales are not counted."""
    bits = next((USE_CASES[one].weight_bits for one in UseCase if name.endswith(one.value)), 16)
    return 3 * HIDDEN * WIDTH * bits // 8


def _operator(use_case: UseCase) -> Layer:
    facts = USE_CASES[use_case]
    operands = to_operands(_experts(use_case), use_case)
    buffer = get_symm_buffer_for_mega_moe(
        None,
        NUM_EXPERTS,
        MAX_ROWS,
        TOPK,
        HIDDEN,
        WIDTH,
        dispatch_quant_mode=facts.dispatch_quant_mode,
        dispatch_quant_out_dtype=facts.dispatch_quant_out_dtype,
    )
    lists = {
        name: [getattr(one, name) for one in operands] if getattr(operands[0], name) is not None else None
        for name in ("l1_sf", "l2_sf", "l1_bias", "l2_bias")
    }

    # As a served layer calls it.
    operator = bind(
        buffer,
        l1_weights=[one.l1 for one in operands],
        l2_weights=[one.l2 for one in operands],
        l1_weights_sf=lists["l1_sf"],
        l2_weights_sf=lists["l2_sf"],
        l1_bias=lists["l1_bias"],
        l2_bias=lists["l2_bias"],
        weight1_type=facts.weight_type,
        weight2_type=facts.weight_type,
    )
    return lambda x, ids, weights: operator(x, ids, weights, None)


def _experts(use_case: UseCase) -> Experts:
    """Random experts of the use case's kind; speed does not depend on the values."""
    facts = USE_CASES[use_case]
    g = torch.Generator().manual_seed(1)
    if facts.family == "dense":
        return DenseExperts(*dense_weights())
    if facts.family == "int":
        return _integers(8 if facts.weight_bits == 8 else 4)
    per_byte = 8 // facts.weight_bits

    def codes(*shape: int) -> Tensor:
        # Below 0x70: no NaN among the FP8 codes.
        return torch.randint(0, 0x70, shape, dtype=torch.uint8, generator=g)

    return MxExperts(
        codes(NUM_EXPERTS, 2 * WIDTH, HIDDEN // per_byte),
        torch.full((NUM_EXPERTS, 2 * WIDTH, HIDDEN // 32), 118, dtype=torch.uint8),
        codes(NUM_EXPERTS, HIDDEN, WIDTH // per_byte),
        torch.full((NUM_EXPERTS, HIDDEN, WIDTH // 32), 118, dtype=torch.uint8),
        "e4m3" if facts.weight_bits == 8 else "e2m1",
    )


def _integers(bits: int) -> IntExperts:
    w13, w2 = dense_weights()
    parts = [[quantise_weight(w[e].float()) for e in range(NUM_EXPERTS)] for w in (w13, w2)]
    shift = 8 - bits
    codes = [torch.stack([q >> shift for q, _ in part]) for part in parts]
    scales = [torch.stack([s for _, s in part]) * 2**shift for part in parts]
    return IntExperts(codes[0], scales[0], codes[1], scales[1], bits=8 if bits == 8 else 4)
