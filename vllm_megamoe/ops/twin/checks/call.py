"""Routed and shared experts as wholes: use case, sizes, number.

All checks of a call, in order; the result is safe to compute with.
"""

import torch

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.call import Call, Experts, Order, RawCall, RawWeights, Weights
from vllm_megamoe.ops.twin.checks.buffer import check_buffer, out_type
from vllm_megamoe.ops.twin.checks.profile import check_call_profile
from vllm_megamoe.ops.twin.checks.tokens import PACKED_FP4, check_ids, check_tokens
from vllm_megamoe.ops.twin.checks.weights import INT_TYPES, MX_TYPES, element_of, read_weights
from vllm_megamoe.ops.twin.families import ELEM_OF
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import find_profile

TABLES = "operator_readme.txt, use case tables"
FLOATS = (AclDtype.BF16, AclDtype.FLOAT)
# Weight types that each type of dispatched rows multiplies (A8W8-FP, A8W4-FP, A4W4-FP).
MX_PAIRS = {
    AclDtype.FLOAT8_E5M2: (AclDtype.FLOAT8_E5M2,),
    AclDtype.FLOAT8_E4M3FN: (AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1),
    AclDtype.FLOAT4_E2M1: (AclDtype.FLOAT4_E2M1,),
}


def read_routed(raw: RawCall, buffer: SymmBuffer) -> Experts:
    """The routed experts, one of the six use cases.

    Raises:
        OperatorError: missing, of another number, size or type than the buffer's use case has.
    """
    return _read(raw.l1, raw.l2, buffer, out_type(buffer), buffer.experts_per_rank)


def read_shared(raw: RawCall, buffer: SymmBuffer) -> Experts | None:
    """The shared experts, None when there are none; they may have another type than the routed ones.

    Raises:
        OperatorError: see `read_routed`; more than four, or another list layout than the routed ones.
    """
    if not raw.shared_l1.tensors and not raw.shared_l2.tensors:
        return None
    out = raw.shared_out if raw.shared_out is not None else out_type(buffer)
    if out is not out_type(buffer) and out is not None and buffer.dispatch_quant_mode != 4:
        rule = "None or the buffer's dispatch_quant_out_dtype unless dispatch_quant_mode is 4"
        source = "operator_readme.txt, sharedExpertQuantOutDtype"
        raise rejection("shared_expert_quant_out_dtype", out.name, rule, source, "Drop it.")
    if raw.shared_l1.tensors and element_of(raw.shared_l1) is AclDtype.INT4:
        rule = "INT4 needs a bias, which shared experts do not take"
        raise rejection("shared_l1_weights", "INT4", rule, "operator_readme.txt, sharedBias1", "Use INT8.")
    experts = _read(raw.shared_l1, raw.shared_l2, buffer, out, None)
    most = limits_of(find_profile("none")).max_shared_experts
    if not 1 <= experts.l1.count <= most.value:
        rule = f"0 to {most.value} experts"
        raise rejection("shared_l1_weights", f"{experts.l1.count} experts", rule, most.source, "Use fewer.")
    if raw.shared_l1.is_stacked != raw.l1.is_stacked:
        rule = "the list layout of l1_weights (per expert, or stacked)"
        source = "operator_readme.txt, TensorList layouts"
        raise rejection("shared_l1_weights", "the other layout", rule, source, "Stack both or neither.")
    return experts


def _read(raw1: RawWeights, raw2: RawWeights, buffer: SymmBuffer, out: AclDtype | None, count: int | None) -> Experts:
    for raw in (raw1, raw2):
        if not raw.tensors:
            raise rejection(raw.name, None, "the experts of this rank", TABLES, "Pass them.")
    if raw1.is_stacked != raw2.is_stacked:
        rule = f"the list layout of {raw1.name} (per expert, or stacked)"
        source = "operator_readme.txt, TensorList layouts"
        raise rejection(raw2.name, "the other layout", rule, source, "Stack both or neither.")
    element = element_of(raw1)
    _check_use_case(raw1.name, element, buffer.dispatch_quant_mode, out)
    order: Order = "k_last" if element in MX_TYPES else "k_first"
    l1, l2 = (read_weights(raw, order, element is AclDtype.INT4) for raw in (raw1, raw2))
    _check_sizes(l1, l2, buffer, count)
    return Experts(l1, l2, ELEM_OF[out] if element in MX_TYPES and out is not None else None)


def _check_use_case(name: str, element: AclDtype, mode: int, out: AclDtype | None) -> None:
    """The weight type must belong to the buffer's dispatch."""
    if mode == 2:
        allowed: tuple[AclDtype, ...] = INT_TYPES
    elif out in MX_PAIRS:
        allowed = MX_PAIRS[out]
    else:
        allowed = FLOATS
    if element not in allowed:
        expected = " or ".join(dtype.name for dtype in allowed)
        dispatch = f"dispatch_quant_mode={mode}, dispatch_quant_out_dtype={out.name if out is not None else None}"
        raise rejection(name, element.name, f"{expected} with {dispatch}", TABLES, "Change one of them.")


def _check_sizes(l1: Weights, l2: Weights, buffer: SymmBuffer, count: int | None) -> None:
    if count is not None and l1.count != count:
        rule = f"{count} experts: num_experts / ranks of the buffer"
        raise rejection(l1.name, f"{l1.count} experts", rule, TABLES, "Pass this rank's experts, all of them.")
    if l2.count != l1.count:
        raise rejection(l2.name, f"{l2.count} experts", f"{l1.count}, as {l1.name}", TABLES, "Pass them.")
    if l2.element is not l1.element:
        raise rejection(l2.name, l2.element.name, f"{l1.element.name}, as {l1.name}", TABLES, "Convert one.")
    where = "[hidden, 2 * intermediate]" if l1.order == "k_first" else "[2 * intermediate, hidden]"
    if l1.inputs != buffer.hidden or l1.outputs % 2 or not l1.outputs:
        rule = f"{where} with hidden={buffer.hidden}"
        raise rejection(l1.name, f"K={l1.inputs}, N={l1.outputs}", rule, TABLES, "Check its order of dimensions.")
    if l2.inputs * 2 != l1.outputs or l2.outputs != buffer.hidden:
        rule = f"{l1.outputs // 2} inputs (half of {l1.name}'s N) to hidden={buffer.hidden} outputs"
        raise rejection(l2.name, f"K={l2.inputs}, N={l2.outputs}", rule, TABLES, "Check its order of dimensions.")


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
        raise rejection("shared_l1_weights.dtype", "torch.float32", rule, README, "Convert them to bfloat16.")
    sent = check_ids(raw, buffer.num_experts)
    call = Call(buffer, config, raw, routed, shared, activation, sent, hidden)
    check_call_profile(call)
    return call


def _check_input_form(raw: RawCall, buffer: SymmBuffer, float32_weights: bool) -> None:
    """x is BF16, or float32 with float32 weights, or quantised as the buffer says, with its scales."""
    out = out_type(buffer)
    quantised = buffer.dispatch_quant_mode == 0 and out in MX_PAIRS
    expected: tuple[torch.dtype, ...] = (torch.float32,) if float32_weights else (torch.bfloat16,)
    if quantised and out is not None:
        expected = _X_OF_OUT[out]
    if raw.x.dtype not in expected:
        rule = f"{expected[0]} with these weights and this buffer"
        remedy = "Convert x, or make a buffer with another dispatch_quant_mode and dispatch_quant_out_dtype."
        raise rejection("x.dtype", raw.x.dtype, rule, README, remedy)
    if not quantised:
        if raw.scales is not None:
            rule = "None unless x is quantised already (dispatch_quant_mode=0 with an fp8 or fp4 type)"
            raise rejection("scales", f"a tensor {list(raw.scales.shape)}", rule, README, "Pass None.")
        return
    _check_merging(buffer)
    shape = (raw.x.shape[0], -(-buffer.hidden // 32))
    if raw.scales is None:
        raise rejection("scales", None, f"E8M0 {list(shape)} for a quantised x", README, "Pass them.")
    if raw.scales.dtype not in (torch.float8_e8m0fnu, torch.uint8) or tuple(raw.scales.shape) != shape:
        value = f"{list(raw.scales.shape)} {raw.scales.dtype}"
        raise rejection("scales", value, f"{list(shape)} torch.float8_e8m0fnu", README, "Pass one per 32 values.")


def _check_merging(buffer: SymmBuffer) -> None:
    if buffer.combine_comm_mode == 1 and buffer.topk_weights_type == 0:
        rule = "0 for a quantised x, unless topk_weights_type=1"
        source = "operator_readme.txt, combineCommMode"
        raise rejection("combine_comm_mode", 1, rule, source, "Set topk_weights_type=1 or combine_comm_mode=0.")
