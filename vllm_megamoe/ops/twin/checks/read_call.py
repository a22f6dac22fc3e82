"""All checks of a call, in order; the result is safe to compute with."""

import torch

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.call import Call, RawCall
from vllm_megamoe.ops.twin.checks.buffer import check_buffer, out_type
from vllm_megamoe.ops.twin.checks.experts import MX_PAIRS, read_routed, read_shared
from vllm_megamoe.ops.twin.checks.ids import check_ids
from vllm_megamoe.ops.twin.checks.profile import check_call_profile
from vllm_megamoe.ops.twin.checks.tokens import PACKED_FP4, check_tokens
from vllm_megamoe.ops.twin.refusal import refusal

README = "operator_readme.txt, pre-quantised x"
_X_OF_OUT = {
    AclDtype.FLOAT8_E5M2: (torch.float8_e5m2,),
    AclDtype.FLOAT8_E4M3FN: (torch.float8_e4m3fn,),
    AclDtype.FLOAT4_E2M1: PACKED_FP4,
}


def read_call(raw: RawCall, buffer: SymmBuffer, config: Settings) -> Call:
    """Check a call against its buffer.

    Raises:
        ValueError: an unknown activation or parameter.
        OperatorError: anything else.
    """
    activation = Activation.of(raw.activation, raw.clamp, raw.params)
    check_buffer(buffer, config)
    hidden = check_tokens(raw, buffer)
    routed, shared = read_routed(raw, buffer), read_shared(raw, buffer)
    _check_input_form(raw, buffer, routed.l1.element is AclDtype.FLOAT)
    if shared is not None and shared.l1.element is AclDtype.FLOAT and raw.x.dtype != torch.float32:
        rule = "float32 shared experts go with float32 x only"
        raise refusal("shared_l1_weights.dtype", "torch.float32", rule, README, "Convert them to bfloat16.")
    sent = check_ids(raw, buffer.num_experts)
    call = Call(buffer, config, raw, routed, shared, activation, sent, hidden)
    check_call_profile(call)
    return call


def _check_input_form(raw: RawCall, buffer: SymmBuffer, float32_weights: bool) -> None:
    """x is BF16, or float32 with float32 weights, or quantised as the buffer says, with its scales."""
    out = out_type(buffer)
    quantised = buffer.dispatch_quant_mode == 0 and out in MX_PAIRS
    wanted: tuple[torch.dtype, ...] = (torch.float32,) if float32_weights else (torch.bfloat16,)
    if quantised and out is not None:
        wanted = _X_OF_OUT[out]
    if raw.x.dtype not in wanted:
        rule = f"{wanted[0]} with these weights and this buffer"
        remedy = "Convert x, or make a buffer with another dispatch_quant_mode and dispatch_quant_out_dtype."
        raise refusal("x.dtype", raw.x.dtype, rule, README, remedy)
    if not quantised:
        if raw.scales is not None:
            rule = "None unless x is quantised already (dispatch_quant_mode=0 with an fp8 or fp4 type)"
            raise refusal("scales", f"a tensor {list(raw.scales.shape)}", rule, README, "Pass None.")
        return
    _check_merging(buffer)
    shape = (raw.x.shape[0], -(-buffer.hidden // 32))
    if raw.scales is None:
        raise refusal("scales", None, f"E8M0 {list(shape)} for a quantised x", README, "Pass them.")
    if raw.scales.dtype not in (torch.float8_e8m0fnu, torch.uint8) or tuple(raw.scales.shape) != shape:
        value = f"{list(raw.scales.shape)} {raw.scales.dtype}"
        raise refusal("scales", value, f"{list(shape)} torch.float8_e8m0fnu", README, "Pass one per 32 values.")


def _check_merging(buffer: SymmBuffer) -> None:
    if buffer.combine_comm_mode == 1 and buffer.topk_weights_type == 0:
        rule = "0 for a quantised x, unless topk_weights_type=1"
        source = "operator_readme.txt, combineCommMode"
        raise refusal("combine_comm_mode", 1, rule, source, "Set topk_weights_type=1 or combine_comm_mode=0.")
