"""What a call brings, and whether there is room for it: tokens and what comes with them, the way out, the memory.

In the order of a token: x with its scales, router weights and mask; how many rows there are, here and on the other
ranks; what they are quantised to when they leave; how many a rank may receive (max_recv_token_num); and the
communicator's window, which all of that must fit into.
"""

from vllm_megamoe.profiles.facts import E2M1, E4M3, E5M2, Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits, Numbers
from vllm_megamoe.profiles.limits.row import API, ARCH22_91, ARCH22_92, ARCH35_91, ARCH35_92, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


def is_quantised(limits: Limits, buffer: BufferFacts) -> bool:
    """Whether x comes quantised: dispatch mode 0 with a type, where there is such a thing."""
    out = buffer.dispatch_quant_out_dtype
    return limits.prequantised.value and buffer.dispatch_quant_mode == 0 and out not in (None, "BF16")


@call_rule("x-dtype")
def x_dtype(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """BF16, or what the buffer says of a quantised x."""
    expected = buffer.dispatch_quant_out_dtype if is_quantised(limits, buffer) else "BF16"
    if call.x_dtype == expected:
        return None
    source = f"{API}:319; {README}:481,550-552,578"
    return Broken("x.dtype", call.x_dtype, str(expected), source, "Convert x.")


@call_rule("x-scales")
def x_scales(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """With a quantised x, and with no other."""
    expected = is_quantised(limits, buffer)
    if profile.revision == "9.1" or call.has_scales == expected:
        return None
    value, rule = ("None", "E8M0 scales of x") if expected else ("a tensor", "None, because x is quantised inside")
    return Broken("scales", value, rule, f"{README}:556,597", "Pass scales with a quantised x only.")


@call_rule("router-weights")
def router_weights(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Kernels of A2 and A3 read float32 whatever the tensor is."""
    cell = limits.router_weights
    if call.topk_weights_dtype in cell.value:
        return None
    silent = ""
    if profile.is_a2_a3 and call.topk_weights_dtype == "BF16":
        silent = "it reads the BF16 memory as float32, two weights as one, and beyond its end"
    expected = " or ".join(cell.value)
    return Broken(
        "topk_weights.dtype", call.topk_weights_dtype, expected, cell.source, "Convert with .float().", silent
    )


@call_rule("mask")
def mask(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """950 has none."""
    if limits.mask.value or not call.has_mask:
        return None
    remedy = "Give the rows ids of -1 instead, and do not read their rows of y."
    return Broken("x_active_mask", "a tensor", "None", limits.mask.source, remedy)


@call_rule("call-arguments")
def call_arguments(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Arguments that 9.1.0 does not have."""
    if profile.revision != "9.1":
        return None
    given = {
        "scales": call.has_scales,
        "activation_params": bool(call.activation_params),
        "shared_l1_weights": call.shared is not None,
        "shared_expert_quant_out_dtype": call.shared_out_dtype is not None,
    }
    return _first_given(given)


def _first_given(given: dict[str, bool]) -> Broken | None:
    for name, is_given in given.items():
        if is_given:
            remedy = "Leave it out, or use an operator of revision 9.2."
            return Broken(name, "given", "nothing: 9.1.0 has no such argument", f"{API}:291,295", remedy)
    return None


@buffer_rule("max-tokens")
def max_tokens(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """The buffer's bound; 0, which the tiling reads as "as many as come", does not get past creation."""
    cell = limits.max_tokens
    allowed = Numbers(1, cell.value)
    if buffer.num_max_tokens_per_rank in allowed:
        return None
    value = str(buffer.num_max_tokens_per_rank)
    remedy = "Bring fewer tokens per call (vLLM: --max-num-batched-tokens), in several calls if need be."
    if buffer.num_max_tokens_per_rank < 1:
        remedy = "Give the most tokens that any rank brings to a call."
    return Broken("num_max_tokens_per_rank", value, str(allowed), cell.source, remedy)


@call_rule("rows")
def rows(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Tokens of one call; a rank without any must bring a dummy."""
    most = buffer.num_max_tokens_per_rank
    if 1 <= call.rows <= most:
        return None
    remedy = "Split the batch, or make a larger buffer."
    if call.rows < 1:
        remedy = "An idle rank brings one dummy token, on every product."
    source = f"{API}:435,438,454; {README}:567"
    return Broken("x: rows", str(call.rows), f"in [1, {most}], num_max_tokens_per_rank of the buffer", source, remedy)


@call_rule("rows-full")
def rows_full(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """950 in 9.1.0 takes full buffers only."""
    most = buffer.num_max_tokens_per_rank
    if limits.rows.value != "full" or call.rows == most:
        return None
    expected = f"{most}, num_max_tokens_per_rank of the buffer: no other number"
    remedy = "Fill up with dummy tokens, and drop their rows of y."
    return Broken("x: rows", str(call.rows), expected, limits.rows.source, remedy)


@call_rule("rows-alike")
def rows_alike(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """A2 and A3 derive offsets in the other ranks' windows from this rank's own count; seen once the ranks have met."""
    if limits.rows.value == "any" or len(set(call.rows_of_ranks)) <= 1:
        return None
    value = ", ".join(str(count) for count in call.rows_of_ranks) + " on ranks 0, 1, ..."
    silent = "" if limits.rows.value == "full" else "it computes wrong rows of y on all ranks"
    remedy = "Fill up with dummy tokens, so that every rank brings the same number."
    return Broken("x: rows", value, "the same number on all ranks", limits.rows.source, remedy, silent)


def _shown(mode: int, out: str | None) -> str:
    return f"({mode}, {out})"


@buffer_rule("fp4-dispatch")
def fp4_dispatch(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """950 in 9.1.0 has no FP4 kernel, yet its host takes the type."""
    if profile.name != "950@9.1" or buffer.dispatch_quant_out_dtype != E2M1:
        return None
    expected = f"{E5M2} or {E4M3}"
    silent = f"it quantises to {E5M2} in its place"
    remedy = "Use FP8, or an operator of revision 9.2."
    return Broken("dispatch_quant_out_dtype", E2M1, expected, limits.dispatch.source, remedy, silent)


@call_rule("dispatch")
def dispatch(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Mode and type go together; the size function that creation runs does not look at them, the tiling does."""
    found = (buffer.dispatch_quant_mode, buffer.dispatch_quant_out_dtype)
    if found in limits.dispatch.value:
        return None
    if profile.name == "950@9.1" and found == (4, E2M1):
        return None  # its host takes it: see `fp4_dispatch`
    pairs = sorted(limits.dispatch.value, key=lambda pair: (pair[0], pair[1] or ""))
    expected = "one of " + ", ".join(_shown(*pair) for pair in pairs)
    remedy = "Create the buffer with one of these pairs, and convert the weights to the type that goes with it."
    names = "(dispatch_quant_mode, dispatch_quant_out_dtype)"
    return Broken(names, _shown(*found), expected, limits.dispatch.source, remedy)


_NAME = "max_recv_token_num"


@call_rule("receive-bound")
def receive_bound(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """950 takes no more than what can come."""
    bound = buffer.receive_bound(buffer.num_max_tokens_per_rank)
    upper = bound if limits.bounded_receive.value else None
    if buffer.max_recv_token_num >= 0 and (upper is None or buffer.max_recv_token_num <= upper):
        return None
    expected = "at least 0" if upper is None else f"in [0, {upper}]: tokens x ranks x min(topk, experts per rank)"
    source = limits.bounded_receive.source
    return Broken(_NAME, str(buffer.max_recv_token_num), expected, source, "Leave it at 0: the operator computes it.")


@call_rule("receive-int4")
def receive_int4(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Combine of 9.1.0 on A3 counts INT4 rows twice, so half of the capacity is lost, the automatic one included."""
    factor = limits.receive_factor_int4.value
    if factor < 2 or call.routed.element1 != "INT4":
        return None
    least = factor * buffer.receive_bound(buffer.num_max_tokens_per_rank)
    if buffer.max_recv_token_num >= least:
        return None
    expected = f"at least {least}: {factor} x tokens x ranks x min(topk, experts per rank); 0 is too little too"
    silent = "once half of the capacity is used, the rows of later experts come back as zeros"
    remedy = f"Create the buffer with {least} (vLLM: max_recv_token_num of 0)."
    source = limits.receive_factor_int4.source
    return Broken(_NAME, str(buffer.max_recv_token_num), expected, source, remedy, silent)


@call_rule("receive-overflow")
def receive_overflow(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """More rows than the capacity; seen once the ranks have met."""
    capacity, most = buffer.max_recv_token_num, max(call.received_rows, default=0)
    if capacity <= 0 or most <= capacity:
        return None
    rank = call.received_rows.index(most)
    silent = "it drops the rows beyond it, and expert_token_nums still counts them"
    if profile.is_950:
        silent = "its first GEMM waits for rows that never come: a hang, or an access out of bounds"
    expected = f"at least {most}, the rows that rank {rank} receives in this call"
    source = f"{README}:501; {API}:308,439"
    return Broken(_NAME, str(capacity), expected, source, "Create the buffer with more, or with 0 for all.", silent)


_MB = 1 << 20


@call_rule("window")
def window(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """The tiling's check of ccl_buffer_size.

    On A2 and A3 the tiling looks at the rows of the call, the document of 9.1 at num_max_tokens_per_rank, which is
    never less: there the document counts. What 950 needs never depends on the call.
    """
    if call.ccl_buffer_size is None or profile.product == "none":
        return None
    # Only this rule needs the sizes, so that a table of limits loads without them.
    from vllm_megamoe.profiles.sizes.window import smallest_window

    quantised = call.routed.element1 in ("INT8", "INT4")
    rows = call.rows if profile.is_a2_a3 and profile.revision != "9.1" else None
    least = smallest_window(profile, buffer, rows=rows, quantised=quantised if profile.is_a2_a3 else None)
    if call.ccl_buffer_size >= least:
        return None
    if profile.is_a2_a3:
        half = -(-least // (2 * _MB))
        remedy = f"Set HCCL_BUFFSIZE={half} (MB of one half) on all ranks before the communicator is made."
        source = f"{API}:381-423; {ARCH22_91}:1031; {ARCH22_92} (CheckCclBufferSize)"
    else:
        remedy = "Create the buffer anew for this size; attributes changed after creation do not resize it."
        source = f"{ARCH35_91}:266-271; {ARCH35_92}:507-512"
    return Broken("ccl_buffer_size", str(call.ccl_buffer_size), f"at least {least} bytes", source, remedy)
