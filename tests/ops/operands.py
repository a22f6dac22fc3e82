"""From a logical case to what one rank passes to the operator, packed by the oracle and cast by `format_cast`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from oracle import packing, quantisers
from oracle.case import Case, Dense, Experts, Integer, Mx
from torch import Tensor

from vllm_megamoe.layout import AclFormat, format_cast

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
OUT_DTYPE: dict[str | None, torch.dtype | int | None] = {None: None, **FP8, "e2m1": 296}
INT4, FP4 = 285, 296


@dataclass(frozen=True, slots=True)
class Form:
    """How the weights are handed over: block format or rows, one list entry per expert or one stack, int4's carrier."""

    blocks: bool = False
    stacked: bool = False
    carrier: str = "int8"

    def __str__(self) -> str:
        words = ("nz" if self.blocks else "nd", "stacked" if self.stacked else "list", self.carrier)
        return "-".join(words)


FORMS = [Form(blocks, stacked) for blocks in (False, True) for stacked in (False, True)]


def as_bf16(values: np.ndarray) -> Tensor:
    """float32 numbers that bf16 holds, as a bf16 tensor."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


def _lists(stack: Tensor, form: Form, cast: Callable[[Tensor], Tensor] = lambda t: t) -> list[Tensor]:
    """[E, ...] as the list that the form asks for."""
    return [cast(stack)] if form.stacked else [cast(one.contiguous()) for one in stack.unbind()]


def _dense(experts: Dense, form: Form, full: bool) -> dict[str, Any]:
    """[K, N]; the device takes bf16 in rows only (op tiling arch22), profile none in blocks as well."""
    make = torch.from_numpy if full else as_bf16
    w1, w2 = (make(np.ascontiguousarray(w.swapaxes(1, 2))) for w in (experts.w13, experts.w2))

    def cast(t: Tensor) -> Tensor:
        return format_cast(t, AclFormat.FRACTAL_NZ) if form.blocks else t

    return {"l1_weights": _lists(w1, form, cast), "l2_weights": _lists(w2, form, cast)}


def _integer(experts: Integer, form: Form) -> dict[str, Any]:
    """[K, N] int8, or nibbles along N; per-channel scales as fp32 bits in 64."""
    result: dict[str, Any] = {}
    matrices = ((experts.w13, experts.s13), (experts.w2, experts.s2))
    for layer, ((w, s), bias) in enumerate(zip(matrices, experts.biases(), strict=True), start=1):
        columns = np.ascontiguousarray(w.swapaxes(1, 2))
        if experts.bits == 4:
            columns = packing.pack_nibbles(columns).view(np.int8)
            result[f"l{layer}_bias"] = _lists(torch.from_numpy(bias), form)

        def cast(t: Tensor) -> Tensor:
            stored = format_cast(t, AclFormat.FRACTAL_NZ) if form.blocks else t
            return stored.view(torch.int32) if experts.bits == 4 and form.carrier == "int32" else stored

        result[f"l{layer}_weights"] = _lists(torch.from_numpy(columns), form, cast)
        result[f"l{layer}_weights_sf"] = _lists(torch.from_numpy(packing.scale_bits(s)), form)
        if experts.bits == 4 and form.carrier == "int8":
            result[f"weight{layer}_type"] = INT4
    return result


def _mx(experts: Mx, form: Form, act_elem: str) -> dict[str, Any]:
    """[N, K]; fp4 packed along K. E8M0 scales in pairs."""
    result: dict[str, Any] = {}
    for layer, (w, s) in enumerate(((experts.w13, experts.s13), (experts.w2, experts.s2)), start=1):
        four = experts.elem == "e2m1"
        codes = torch.from_numpy(packing.pack_nibbles(w) if four else w)
        codes = codes if four else codes.view(FP8[experts.elem])
        # operator_readme.txt: A4W4's first weight FRACTAL_NZ, every other fp4 one C0_32, which bytes call C0_16
        narrow = four and not (act_elem == "e2m1" and layer == 1)
        fmt = AclFormat.FRACTAL_NZ_C0_16 if narrow else AclFormat.FRACTAL_NZ

        def cast(t: Tensor, fmt: AclFormat = fmt) -> Tensor:
            return format_cast(t, fmt) if form.blocks else t

        scales = torch.from_numpy(packing.pair_scales(s)).view(torch.float8_e8m0fnu)
        result[f"l{layer}_weights"] = _lists(codes, form, cast)
        result[f"l{layer}_weights_sf"] = _lists(scales, form)
        if four:
            result[f"weight{layer}_type"] = FP4
    return result


def _weights(experts: Experts, form: Form, elem: str | None, full: bool) -> dict[str, Any]:
    if isinstance(experts, Dense):
        return _dense(experts, form, full)
    return _integer(experts, form) if isinstance(experts, Integer) else _mx(experts, form, elem or "")


def _own(experts: Experts, rank: int, count: int) -> Experts:
    """The experts of one rank."""
    cut = slice(rank * count, (rank + 1) * count)
    fields = {name: getattr(experts, name) for name in experts.__slots__}
    return type(experts)(**{n: v[cut] if isinstance(v, np.ndarray) else v for n, v in fields.items()})


def _tokens(case: Case, r: int) -> dict[str, Any]:
    x = case.ranks[r].x
    if case.full_float32:
        return {"x": torch.from_numpy(x)}
    if not case.prequantised:
        return {"x": as_bf16(x)}
    assert case.act_elem is not None
    codes, scales = case.ranks[r].codes or quantisers.mx_encode(x, case.act_elem)
    four = case.act_elem == "e2m1"
    packed = torch.from_numpy(packing.pack_nibbles(codes) if four else codes)
    return {
        "x": packed if four else packed.view(FP8[case.act_elem]),
        "scales": torch.from_numpy(scales).view(torch.float8_e8m0fnu),
    }


def call_arguments(case: Case, r: int, form: Form) -> dict[str, Any]:
    """All of `mega_moe`'s arguments but the buffer, for rank r."""
    rank, act = case.ranks[r], case.act
    arguments = _tokens(case, r)
    arguments |= {
        "topk_ids": torch.from_numpy(rank.topk_ids.copy()),
        "topk_weights": torch.from_numpy(rank.topk_weights),
        "activation": act.name,
        "activation_clamp": act.clamp,
        "activation_params": _parameters(case),
    }
    arguments |= _weights(_own(case.experts, r, case.experts_per_rank), form, case.act_elem, case.full_float32)
    if rank.mask is not None:
        arguments["x_active_mask"] = torch.from_numpy(rank.mask)
    if rank.shared is not None:
        elem = case.shared_elem or case.act_elem
        arguments |= {f"shared_{k}": v for k, v in _weights(rank.shared, form, elem, case.full_float32).items()}
        if case.shared_elem:
            arguments["shared_expert_quant_out_dtype"] = OUT_DTYPE[case.shared_elem]
    return arguments


def _parameters(case: Case) -> dict[str, float] | None:
    act = case.act
    if act.name == "swigluoai":
        return {"alpha": act.alpha, "beta": act.beta}
    if act.name == "situglu":
        return {"beta": act.beta} | ({} if act.linear_beta is None else {"linear_beta": act.linear_beta})
    return None


def buffer_arguments(case: Case) -> dict[str, Any]:
    """Arguments of `get_symm_buffer_for_mega_moe` but the group; room for the largest rank."""
    integer = case.use_case.endswith("-int")
    mx = case.act_elem is not None
    return {
        "num_experts": case.num_experts,
        "num_max_tokens_per_rank": max(len(rank.x) for rank in case.ranks),
        "num_topk": case.ranks[0].topk_ids.shape[1],
        "hidden": case.ranks[0].x.shape[1],
        "intermediate_hidden": 0,
        "max_recv_token_num": case.max_recv_token_num,
        "dispatch_quant_mode": 2 if integer else 4 if mx and not case.prequantised else 0,
        "dispatch_quant_out_dtype": torch.int8 if integer else OUT_DTYPE[case.act_elem],
        "combine_quant_mode": case.combine_quant_mode,
        "topk_weights_type": case.topk_weights_type,
        "combine_comm_mode": case.combine_comm_mode,
    }
