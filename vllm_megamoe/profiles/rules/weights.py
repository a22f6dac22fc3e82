"""What the weights of a call must be: those of the routed experts, then those of the shared ones.

Both must be of a use case that the product runs, in its list layout and storage formats, and of a width I that it
takes (after the activation, half of the first weight's N). Shared experts are bound to the routed ones besides.
"""

from vllm_megamoe.profiles.facts import E2M1, E4M3, Broken, BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.limits import Cell, Limits
from vllm_megamoe.profiles.limits.row import API, ARCH22_91, ARCH22_92, ARCH35_92, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule
from vllm_megamoe.profiles.use_cases import UseCase


def use_case_of(out: str | None, element: str) -> UseCase | None:
    """The use case of dispatched rows of type `out` (None for BF16) and weights of type `element`; None for none."""
    if out in (None, "BF16"):
        return UseCase.A16W16 if element == "BF16" else None
    if out == "INT8":
        return {"INT8": UseCase.A8W8_INT, "INT4": UseCase.A8W4_INT}.get(element)
    if out == E2M1:
        return UseCase.A4W4_FP if element == E2M1 else None
    if element == out:
        return UseCase.A8W8_FP
    return UseCase.A8W4_FP if (out, element) == (E4M3, E2M1) else None


def wrong_use_case(
    name: str, weights: WeightFacts, out: str | None, profile: Profile, cell: Cell[frozenset[UseCase]]
) -> Broken | None:
    """What is wrong with the weights' type; `name` is the argument's, `cell` what it may be."""
    case = use_case_of(out, weights.element1)
    if weights.element2 == weights.element1 and case in cell.value:
        return None
    cases = ", ".join(sorted(case.value for case in cell.value))
    value = f"{weights.element1} and {weights.element2} behind rows of {out or 'BF16'}"
    silent = ""
    if profile.name == "950@9.1" and weights.element1 == E2M1:
        silent = "it reads the FP4 bytes as FP8"
    choice = "one of these" if len(cell.value) > 1 else cases
    remedy = f"Convert the weights to {choice}, and create the buffer for them."
    return Broken(name, value, f"the types of one of {cases}", cell.source, remedy, silent)


def wrong_format(name: str, weights: WeightFacts, out: str | None, profile: Profile, limits: Limits) -> Broken | None:
    """What is wrong with the weights' storage formats.

    950 of 2026-08 looks at one of them, the first weight of A8W4-FP; the source of 2026-09 looks at all.
    """
    pair = (None if out == "BF16" else out, weights.element1)
    allowed, found = limits.formats.value.get(pair, ()), (weights.format1, weights.format2)
    if not allowed or found in allowed:
        return None
    expected = " or ".join(f"{one} and {other}" for one, other in allowed)
    silent = ""
    if weights.element1 == "INT4" and weights.carrier == "INT32":
        silent = "it takes int32 memory for FRACTAL_NZ whatever it is, and misreads rows"
    looked_at = name.startswith("l1") and pair == (E4M3, E2M1) and found[0] != allowed[0][0]
    if profile.name == "950@9.2" and not looked_at:
        silent = "before 2026-09 it takes the formats for granted that go with the first weight's, and misreads others"
    remedy = "Cast both weights with format_cast (on the device torch_npu.npu_format_cast)."
    return Broken(name, f"{found[0]} and {found[1]}", expected, limits.formats.source, remedy, silent)


@call_rule("use-case")
def use_case(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Weights and dispatch belong to one use case of the product."""
    return wrong_use_case("l1_weights", call.routed, buffer.dispatch_quant_out_dtype, profile, limits.use_cases)


@call_rule("format")
def weight_format(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Storage formats of both weights."""
    return wrong_format("l1_weights, l2_weights", call.routed, buffer.dispatch_quant_out_dtype, profile, limits)


@call_rule("layout")
def layout(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """One matrix per expert, or one stack."""
    found = "stacked" if call.routed.stacked else "list"
    if found in limits.layouts.value:
        return None
    words = {"list": "a list of 2-D tensors, one per expert", "stacked": "one 3-D stack of all experts"}
    remedy = "Unbind the stack." if call.routed.stacked else "Stack the list with torch.stack."
    return Broken("l1_weights", words[found], words[limits.layouts.value[0]], limits.layouts.source, remedy)


@call_rule("weight-scales")
def weight_scales(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Quantised weights have scales, others have none."""
    expected = call.routed.element1 not in ("BF16", "FLOAT")
    if call.routed.has_scales == expected:
        return None
    value, rule = ("None", "one scale tensor per weight tensor") if expected else ("given", "None for BF16 weights")
    source = f"{API}:449-451,468; {README}:550-552,592"
    remedy = "Pass both lists." if expected else "Leave them out."
    return Broken("l1_weights_sf, l2_weights_sf", value, rule, source, remedy)


@call_rule("bias")
def bias(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """INT4 needs its compensation, nothing else takes a bias; 950 reads none, and before 2026-09 says nothing."""
    expected = call.routed.element1 == "INT4"
    if call.routed.has_bias == expected:
        return None
    value, rule = ("None", "the compensation of INT4") if expected else ("given", "None unless the weights are INT4")
    source = f"{API}:337-338; {README}:488-489; {ARCH22_91}:943; {ARCH22_92}:1123"
    remedy = "Leave it out, or add it outside of the operator."
    if expected:
        remedy = "The bias is 8 times the sum of the weight's integers over K, times its scale, per output channel."
    silent = "it computes without the bias" if profile.is_950 else ""
    return Broken("l1_bias, l2_bias", value, rule, source, remedy, silent)


@call_rule("intermediate")
def intermediate(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Of the routed experts."""
    width, cell = call.routed.intermediate_hidden, limits.intermediate
    if width in cell.value:
        return None
    larger = cell.value.at_least(width)
    remedy = "The operator does not take such wide experts."
    if larger is not None:
        remedy = f"Pad gate, up and down projection with zeros to {larger}."
    value = f"{width} (N = {2 * width})"
    return Broken("l1_weights: intermediate_hidden", value, str(cell.value), cell.source, remedy)


@call_rule("shared-intermediate")
def shared_intermediate(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Shared experts are as wide as the routed ones."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    if call.shared.intermediate_hidden == call.routed.intermediate_hidden:
        return None
    value, expected = (
        str(call.shared.intermediate_hidden),
        f"{call.routed.intermediate_hidden}, as of the routed experts",
    )
    source = f"{README}:604; {ARCH35_92} (rows and columns of the shared weights)"
    remedy = "Split a wider shared expert into several of that width."
    return Broken("shared_l1_weights: intermediate_hidden", value, expected, source, remedy)


def _out(buffer: BufferFacts, call: CallFacts) -> str | None:
    return call.shared_out_dtype or buffer.dispatch_quant_out_dtype


@call_rule("shared-experts")
def shared_experts(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """How many there may be; A2 and A3 have the arguments at 9.2 and do not look at them."""
    cell = limits.max_shared_experts
    if profile.revision == "9.1" or call.shared is None or call.shared.count <= cell.value:
        return None
    remedy = "Compute the shared experts outside of the operator (vLLM: fuse_shared_experts=off)."
    value = f"{call.shared.count} experts"
    silent = "it leaves the shared experts out of y" if profile.is_a2_a3 else ""
    return Broken("shared_l1_weights", value, f"at most {cell.value}", cell.source, remedy, silent)


@call_rule("shared-type")
def shared_type(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """On URMA they have the routed experts' type; beside a quantised x they are fed what x is."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    elements = (call.routed.element1, buffer.dispatch_quant_out_dtype)
    found = (call.shared.element1, _out(buffer, call))
    if found == elements:
        return None
    source = ""
    if not limits.mixed_shared.value:
        source = limits.mixed_shared.source
    elif buffer.dispatch_quant_mode == 0 and found[1] != elements[1]:
        source = f"{README}:578"
    if not source:
        return None
    value = f"{found[0]} behind rows of {found[1]}"
    expected = f"{elements[0]} behind rows of {elements[1]}, as the routed experts"
    return Broken(
        "shared_l1_weights", value, expected, source, "Quantise both alike, or do not fuse the shared experts."
    )


@call_rule("shared-use-case")
def shared_use_case(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """They too are of one use case of the product."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    return wrong_use_case("shared_l1_weights", call.shared, _out(buffer, call), profile, limits.shared_use_cases)


@call_rule("shared-format")
def shared_format(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Formats of their own type."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    name = "shared_l1_weights, shared_l2_weights"
    return wrong_format(name, call.shared, _out(buffer, call), profile, limits)


@call_rule("shared-layout")
def shared_layout(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """List or stack, as the routed experts."""
    if call.shared is None or not limits.max_shared_experts.value or call.shared.stacked == call.routed.stacked:
        return None
    words = ("a list", "a stack")
    value, expected = words[call.shared.stacked], f"{words[call.routed.stacked]}, as l1_weights"
    return Broken("shared_l1_weights", value, expected, f"{README}:609", "Stack both or neither.")
