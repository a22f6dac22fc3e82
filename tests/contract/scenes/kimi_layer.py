"""The fused half of vllm-ascend's nightly check of MegaMoe on A5, Kimi-K3's layer made small, beside the formula.

As tests/e2e/nightly/single_node/ops/test_mega_moe.py has it: their loaded weights, their buffer's arguments, their
`_apply_cann_mega_moe`. Its other half runs kernels that are not here; the same formula in float64 stands for it.
"""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch_npu
from contract.support.rank import Rank
from oracle import formats
from oracle.quantisers import mx_encode
from torch import Tensor
from torch import distributed as dist

EXPERTS, HIDDEN, INTERMEDIATE, TOPK, TOKENS = 16, 1024, 512, 4, 32
BETA, LINEAR_BETA = 4.0, 25.0


def run(rank: Rank) -> dict[str, Any]:
    """Their figures of this rank's rows: relative RMSE, cosine, and whether the counts are equal."""
    from vllm_ascend.ops.fused_moe.dataclass.fused_experts import build_fused_experts_input
    from vllm_ascend.ops.fused_moe.moe_comm_method import FusedMC2CommImpl
    from vllm_ascend.ops.fused_moe.moe_utils import load_cann_mega_moe_ops, select_mega_moe_activation_kwargs
    from vllm_ascend.ops.fused_moe.token_dispatcher import TokenDispatcherWithMC2
    from vllm_ascend.quantization.quant_type import QuantType

    dist.init_process_group("hccl", init_method=rank.meeting_point, rank=rank.number, world_size=rank.size)
    group = dist.new_group(backend="hccl")
    group._get_backend(torch.device("npu")).get_hccl_comm_name(rank.number)
    allocate, mega = load_cann_mega_moe_ops()
    own = range(rank.number * EXPERTS // rank.size, (rank.number + 1) * EXPERTS // rank.size)
    layer, weights = _loaded([_expert(e) for e in own])
    layer.mega_moe_activation_kwargs = select_mega_moe_activation_kwargs(
        mega,
        activation="situ",
        activation_clamp=None,
        swiglu_alpha=1.0,
        swiglu_beta=0.0,
        situ_beta=BETA,
        situ_linear_beta=LINEAR_BETA,
    )
    comm = object.__new__(FusedMC2CommImpl)
    comm.mega_moe = mega
    comm.mega_moe_symm_buffer = allocate(
        group,
        EXPERTS,
        TOKENS,
        TOPK,
        HIDDEN,
        2 * INTERMEDIATE,
        max_recv_token_num=TOKENS * rank.size * TOPK,
        dispatch_quant_mode=4,
        dispatch_quant_out_dtype=24,
    )
    comm.token_dispatcher = object.__new__(TokenDispatcherWithMC2)
    comm.token_dispatcher.max_num_tokens_per_rank, comm.token_dispatcher.global_bs = TOKENS, 0
    rows = [_rows(number) for number in range(rank.size)]
    x, ids, probs = rows[rank.number]
    given = build_fused_experts_input(
        hidden_states=x,
        topk_ids=ids,
        topk_weights=probs,
        quant_type=QuantType.W4A8MXFP,
        layer=layer,
        mxfp_act_quant_type=torch.float8_e4m3fn,
        mxfp_weight_quant_type=torch_npu.float4_e2m1fn_x2,
        mxfp_scale_dtype=torch_npu.float8_e8m0fnu,
        mxfp_per_token_scale_dtype=torch_npu.float8_e8m0fnu,
        mxfp_use_bf16=True,
        dynamic_eplb=False,
        activation="situ",
    )
    with torch.inference_mode():
        y, counts = comm._apply_cann_mega_moe(given, weights, is_decode_only_node=False)
    out, ref = y.double().flatten(), _formula(x, ids, probs).flatten()
    every = torch.cat([each[1] for each in rows]).flatten()
    return {
        "finite": bool(out.isfinite().all()),
        "relative_rmse": float(((out - ref).square().mean() / ref.square().mean()).sqrt()),
        "cosine": float(torch.nn.functional.cosine_similarity(out, ref, dim=0)),
        "counts_equal": counts.tolist() == [int((every == e).sum()) for e in own],
    }


def _rows(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(20260928 + rank)
    x = torch.randn(TOKENS, HIDDEN, generator=source).bfloat16()
    ids = torch.rand(TOKENS, EXPERTS, generator=source).topk(TOPK, dim=-1).indices.to(torch.int32)
    return x, ids, torch.randn(TOKENS, TOPK, generator=source).softmax(-1)


def _expert(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Codes and scales of both matrices, [N, K]."""
    source = torch.Generator().manual_seed(number)
    shapes = ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
    made = [(torch.randn(n, k, generator=source) / k**0.5).bfloat16() for n, k in shapes]
    return [mx_encode(each.float().numpy(), "e2m1") for each in made]


def _values(codes: np.ndarray, scales: np.ndarray, elem: str) -> Tensor:
    factors = np.repeat(formats.e8m0(scales), 32, axis=-1)
    return torch.from_numpy(formats.decode(codes, elem).astype(np.float64) * factors)


def _loaded(experts: list[list[tuple[np.ndarray, np.ndarray]]]) -> tuple[Any, Any]:
    """Their method's layer and what it hands to the operator."""
    from vllm_ascend.quantization.methods.w4a8 import w4a8_mxfp4

    layer: Any = torch.nn.Module()
    for place, name in enumerate(("w13", "w2")):
        codes = np.stack([expert[place][0] for expert in experts])
        packed = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)
        scales = torch.from_numpy(np.stack([expert[place][1] for expert in experts]))
        layer.register_parameter(f"{name}_weight", torch.nn.Parameter(packed, requires_grad=False))
        layer.register_parameter(f"{name}_weight_scale", torch.nn.Parameter(scales, requires_grad=False))
    method = object.__new__(w4a8_mxfp4.AscendW4A8MXFPDynamicFusedMoEMethod)
    with (
        patch.object(w4a8_mxfp4, "get_current_vllm_config", return_value=None),
        patch.object(w4a8_mxfp4, "use_cann_megamoe", return_value=True),
        patch.object(w4a8_mxfp4, "_EXTRA_CTX", SimpleNamespace(use_mega_moe=True)),
    ):
        method.process_weights_after_loading(layer)
        return layer, method.get_fused_mc2_weights(layer)


def _formula(x: Tensor, ids: Tensor, probs: Tensor) -> Tensor:
    """float64, with E4M3 rows before both matrices."""

    def rounded(rows: Tensor) -> Tensor:
        return _values(*mx_encode(rows.bfloat16().float().numpy(), "e4m3"), "e4m3")

    y, given = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64), rounded(x)
    for expert in ids.unique().tolist():
        w13, w2 = (_values(*each, "e2m1") for each in _expert(expert))
        token, place = (ids == expert).nonzero(as_tuple=True)
        gate, up = (given[token] @ w13.t()).chunk(2, dim=-1)
        active = BETA * (gate / BETA).tanh() * gate.sigmoid() * LINEAR_BETA * (up / LINEAR_BETA).tanh()
        y[token] += probs[token, place, None].double() * (rounded(active) @ w2.t())
    return y
