"""A call, read and checked in one order; the result is safe to compute with.

The product's rules speak first, so that nobody is told to do what that product does not take; then what has no meaning
on any: the buffer's configuration, tokens and ids, experts, the form of x. Strided tokens are taken (torch_api.txt,
constraints table).
"""

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.environment import hccl_buffsize
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops.arguments import check_create
from vllm_megamoe.ops.buffer import SymmBuffer, buffer_facts
from vllm_megamoe.ops.facts import call_facts, check_width, judge
from vllm_megamoe.ops.given import PACKED_FP4, Given
from vllm_megamoe.ops.rejection import raise_broken, rejection
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.call import Call, Experts
from vllm_megamoe.ops.twin.header import MAX_LOCAL_EXPERTS
from vllm_megamoe.ops.twin.read_weights import MX_PAIRS, out_type, read_routed, read_shared
from vllm_megamoe.ops.twin.state import state_of
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.window import ccl_buffer_size

API = "torch_api.txt, mega_moe parameters"
README = "operator_readme.txt, parameters"
PREQUANTISED = "operator_readme.txt, pre-quantised x"
X_DTYPES = (torch.bfloat16, torch.float32, torch.float8_e5m2, torch.float8_e4m3fn, *PACKED_FP4)
_X_OF_OUT = {
    AclDtype.FLOAT8_E5M2: (torch.float8_e5m2,),
    AclDtype.FLOAT8_E4M3FN: (torch.float8_e4m3fn,),
    AclDtype.FLOAT4_E2M1: PACKED_FP4,
}
_OUT_TYPES: dict[int, tuple[AclDtype | None, ...]] = {
    0: (None, AclDtype.BF16, AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1),
    2: (AclDtype.INT8,),
    4: (AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1),
}
"""Output types of each dispatch mode. The documents leave None open for INT8 too; the tiling of arch22 rejects it."""

_MIB = 1 << 20


def read_call(given: Given, buffer: SymmBuffer, config: Settings) -> Call:
    """Check a call against its buffer, whose attributes may have changed since its creation.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    check_create(buffer, late=config.found_profile.product == "none")
    if given.x.dim() != 2:
        remedy = "Reshape it: x.flatten(0, -2)."
        raise rejection("x.shape", list(given.x.shape), "[num_tokens, hidden]", API, remedy)
    window = _window_of(buffer, config.found_profile)
    check_product(given, buffer, config, window)
    activation = Activation.of(given.activation, given.clamp, given.params)
    check_configuration(buffer, modes=True)
    _check_tokens(given, buffer)
    routed, shared = read_routed(given, buffer), read_shared(given, buffer)
    check_width(buffer.intermediate_hidden, routed.l2.inputs)
    return read_rows(given, buffer, config, routed, shared, activation, window)


def read_rows(
    given: Given,
    buffer: SymmBuffer,
    config: Settings,
    routed: Experts,
    shared: Experts | None,
    activation: Activation,
    window: int,
) -> Call:
    """Check what belongs to the rows of this call alone; all else has been read.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    if given.x.dim() != 2:
        remedy = "Reshape it: x.flatten(0, -2)."
        raise rejection("x.shape", list(given.x.shape), "[num_tokens, hidden]", API, remedy)
    hidden = _check_tokens(given, buffer)
    _check_input_form(given, buffer, routed.l1.element is AclDtype.FLOAT)
    if shared is not None and shared.l1.element is AclDtype.FLOAT and given.x.dtype != torch.float32:
        rule = "no float32 unless x is float32"
        raise rejection("shared_l1_weights.dtype", "torch.float32", rule, README, "Pass them .to(torch.bfloat16).")
    sent = _check_ids(given, buffer.num_experts)
    return Call(buffer, config, given, routed, shared, activation, sent, hidden, window)


def check_product(
    given: Given,
    buffer: SymmBuffer,
    config: Settings,
    window: int,
    rows: tuple[int, ...] = (),
    received: tuple[int, ...] = (),
) -> None:
    """Reject what the profile's product rejects or silently gets wrong; nothing in profile `none`.

    Args:
        given, buffer, config: of the call.
        window: bytes of the buffer's window.
        rows, received: tokens of every rank and rows that every rank receives, once the ranks have met; then all of
            them look at the same numbers, so that all of them reject, or none.

    Raises:
        OperatorError: the first rule that is broken.
    """
    profile = config.found_profile
    if profile.product != "none":
        raise_broken(judge(profile, buffer_facts(buffer), call_facts(given, buffer.hidden, window, rows, received)))


def window_bytes(profile: Profile, buffer: BufferFacts) -> int:
    """What `SymmBuffer.ccl_buffer_size` says: HCCL's window on A2/A3, the buffer's own memory on 950, 0 in `none`.

    Raises:
        ConfigError: HCCL_BUFFSIZE is no number of MB.
    """
    if not profile.is_a2_a3:
        return ccl_buffer_size(profile, buffer)
    # HCCL allocates one half for each direction and reports the sum (torch_api.txt:381).
    return 2 * _MIB * hccl_buffsize()


def _window_of(buffer: SymmBuffer, profile: Profile) -> int:
    """The buffer's window; of a buffer that was made without a profile, what the call's product would have given it."""
    if profile.product == "none":
        return 0
    return buffer.ccl_buffer_size or window_bytes(profile, state_of(buffer).created or buffer_facts(buffer))


def check_configuration(buffer: SymmBuffer, *, modes: bool) -> None:
    """Reject a configuration that no use case has.

    Args:
        buffer: its attributes as they are now, each of a value that it may have.
        modes: whether to look at modes that a product's creation does not look at.

    Raises:
        OperatorError: naming the first attribute that is wrong.
    """
    ranks, experts = buffer.ep_world_size, buffer.num_experts
    if experts % ranks:
        rule = f"a multiple of the {ranks} ranks of the group"
        raise rejection("num_experts", experts, rule, README, f"Choose a group whose size divides {experts}.")
    if experts // ranks > MAX_LOCAL_EXPERTS:
        rule = f"at most {MAX_LOCAL_EXPERTS} experts per rank, not {experts // ranks}"
        remedy = f"Use {-(-experts // MAX_LOCAL_EXPERTS)} ranks or more."
        raise rejection("num_experts", experts, rule, "operator_readme.txt, localMoeExpertNum", remedy)
    if not modes:
        return
    mode, out = buffer.dispatch_quant_mode, out_type(buffer)
    if out not in _OUT_TYPES[mode]:
        rule = ", ".join("None" if dtype is None else dtype.name for dtype in _OUT_TYPES[mode])
        raise rejection(
            "dispatch_quant_out_dtype",
            repr(buffer.dispatch_quant_out_dtype),
            f"one of {rule} with dispatch_quant_mode={mode}",
            "operator_readme.txt, use case tables",
            "Give the type that the tokens are quantised to: torch.int8 with mode 2, torch.float8_e4m3fn with 4, say.",
        )
    if buffer.combine_comm_mode == 1 and buffer.combine_quant_mode != 0:
        rule = f"0 with combine_quant_mode={buffer.combine_quant_mode}"
        source = "operator_readme.txt, combineCommMode"
        raise rejection("combine_comm_mode", 1, rule, source, "Set one of the two to 0.")


def _check_tokens(given: Given, buffer: SymmBuffer) -> int:
    """Shapes and dtypes of x, ids, router weights and mask; returns H in elements."""
    x, tokens = given.x, given.x.shape[0]
    if x.dtype not in X_DTYPES:
        rule = "torch.bfloat16, or fp8 or packed fp4 with scales (float32: twin only)"
        raise rejection("x.dtype", x.dtype, rule, README, "Convert with .to(torch.bfloat16).")
    hidden = int(x.shape[1]) * (2 if x.dtype in PACKED_FP4 else 1)
    if hidden != buffer.hidden:
        rule, source = f"{buffer.hidden}, as the buffer's", "torch_api.txt, consistency"
        raise rejection("x: hidden", hidden, rule, source, f"Make a buffer with hidden={hidden}.")
    if buffer.num_max_tokens_per_rank and tokens > buffer.num_max_tokens_per_rank:
        source = "operator_readme.txt, numMaxTokensPerRank"
        rule, remedy = f"at least the {tokens} rows of x", f"Split the batch, or make a larger buffer, of {tokens}."
        raise rejection("num_max_tokens_per_rank", buffer.num_max_tokens_per_rank, rule, source, remedy)
    expected = (tokens, buffer.num_topk)
    for name, tensor in (("topk_ids", given.topk_ids), ("topk_weights", given.topk_weights)):
        if tuple(tensor.shape) != expected:
            rule = f"{list(expected)}: the rows of x, and num_topk={buffer.num_topk} of the buffer"
            raise rejection(f"{name}.shape", list(tensor.shape), rule, API, "Pass one entry per token and expert.")
    if given.topk_ids.dtype != torch.int32:
        remedy = "Convert with .to(torch.int32)."
        raise rejection("topk_ids.dtype", given.topk_ids.dtype, "torch.int32", API, remedy)
    if given.topk_weights.dtype not in (torch.float32, torch.bfloat16):
        rule = "torch.float32 or torch.bfloat16"
        raise rejection("topk_weights.dtype", given.topk_weights.dtype, rule, README, "Convert with .float().")
    mask = given.mask
    if mask is not None and tuple(mask.shape) != (tokens,):
        raise rejection("x_active_mask.shape", list(mask.shape), f"[{tokens}]", API, "Pass one entry per row of x.")
    if mask is not None and mask.dtype != torch.int8:
        raise rejection("x_active_mask.dtype", mask.dtype, "torch.int8", API, "Convert with .to(torch.int8).")
    return hidden


def _check_ids(given: Given, num_experts: int) -> Tensor:
    """The pairs that are sent: bool [T, K], without -1 and without masked rows, whose ids may be anything.

    An id out of range, or twice in a row of ids, is rejected with its row.
    """
    ids, source = given.topk_ids, "torch_api.txt, topk_ids"
    remedy = "Pass what the router chose, and -1 where no expert is meant."
    if not ids.numel():
        return torch.ones(ids.shape, dtype=torch.bool)
    ordered = ids.sort(dim=1).values
    plain = given.mask is None and int(ordered[:, 0].min()) >= 0 and int(ordered[:, -1].max()) < num_experts
    if plain and not bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        return torch.ones(ids.shape, dtype=torch.bool)
    sent = ids != -1
    if given.mask is not None:
        sent &= (given.mask != 0)[:, None]
    outside = sent & ((ids < 0) | (ids >= num_experts))
    if outside.any():
        row = int(outside.any(dim=1).nonzero()[0])
        rule = f"in [0, {num_experts}), or -1 for a pair that is not sent"
        raise rejection(f"topk_ids[{row}]", ids[row].tolist(), rule, source, remedy)
    # Pairs that are not sent get ids of their own, so that they equal nothing.
    distinct = torch.where(sent, ids, -1 - torch.arange(ids.shape[1], dtype=ids.dtype))
    ordered = distinct.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1)
    if twice.any():
        row = int(twice.nonzero()[0])
        rule = "each expert at most once for a token"
        raise rejection(f"topk_ids[{row}]", ids[row].tolist(), rule, source, remedy)
    return sent


def _check_input_form(given: Given, buffer: SymmBuffer, float32_weights: bool) -> None:
    """x is BF16, or float32 with float32 weights, or quantised as the buffer says, with its scales."""
    out = out_type(buffer)
    quantised = buffer.dispatch_quant_mode == 0 and out in MX_PAIRS
    expected: tuple[torch.dtype, ...] = (torch.float32,) if float32_weights else (torch.bfloat16,)
    if quantised and out is not None:
        expected = _X_OF_OUT[out]
    if given.x.dtype not in expected:
        rule = f"{expected[0]} with these weights and this buffer"
        remedy = "Convert x, or make a buffer with another dispatch_quant_mode and dispatch_quant_out_dtype."
        raise rejection("x.dtype", given.x.dtype, rule, PREQUANTISED, remedy)
    if not quantised:
        if given.scales is not None:
            rule = "None unless x is quantised already (dispatch_quant_mode=0 with an fp8 or fp4 type)"
            value = f"a tensor {list(given.scales.shape)}"
            raise rejection("scales", value, rule, PREQUANTISED, "Pass scales=None.")
        return
    if buffer.combine_comm_mode == 1 and buffer.topk_weights_type == 0:
        rule = "0 for a quantised x, unless topk_weights_type=1"
        source = "operator_readme.txt, combineCommMode"
        raise rejection("combine_comm_mode", 1, rule, source, "Set topk_weights_type=1 or combine_comm_mode=0.")
    shape = (given.x.shape[0], -(-buffer.hidden // 32))
    if given.scales is None:
        remedy = "Pass one E8M0 byte for each 32 elements of x."
        raise rejection("scales", None, f"E8M0 {list(shape)} for a quantised x", PREQUANTISED, remedy)
    if given.scales.dtype not in (torch.float8_e8m0fnu, torch.uint8) or tuple(given.scales.shape) != shape:
        value = f"{list(given.scales.shape)} {given.scales.dtype}"
        rule = f"{list(shape)} torch.float8_e8m0fnu"
        raise rejection("scales", value, rule, PREQUANTISED, "Pass one E8M0 byte for each 32 elements of x.")
