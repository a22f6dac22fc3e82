"""All decisions about one layer, in order; each later one builds upon the earlier ones."""

import math

from vllm_megamoe.plan.activation import ActivationPlan, plan_activation
from vllm_megamoe.plan.capacity import Capacity, Pad, largest_chunk
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, buffer_facts, call_facts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.padding import Padding, plan_padding
from vllm_megamoe.plan.rules import RULES
from vllm_megamoe.plan.shared import SharedPlan, plan_shared
from vllm_megamoe.plan.use_case import UseCaseChoice, choose_use_case
from vllm_megamoe.plan.verdict import Violation, of_product
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call
from vllm_megamoe.profiles.sizes.memory import weight_bytes, workspace_bytes
from vllm_megamoe.profiles.sizes.window import hccl_buffsize_mb, window_memory
from vllm_megamoe.profiles.use_cases import UseCase

GIB = 1 << 30
_PADS: dict[str, Pad] = {"any": "own", "alike": "dp_max", "full": "num_max"}


def decide(
    engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options
) -> tuple[LayerPlan | None, list[Violation]]:
    """Plan one layer.

    Returns:
        The plan, None where a violation leaves nothing to plan, and every rule that is violated.
    """
    found = [violation for rule in RULES for violation in rule(engine, layer, profile, options)]
    choice = choose_use_case(layer, profile, options, engine.dtype)
    found += [Violation("use_case", *wrong) for wrong in choice.wrong]
    padding, wrong_sizes = plan_padding(layer, profile, options)
    found += wrong_sizes
    activation = plan_activation(layer.activation)
    on_product = choice.use_case in limits_of(profile).use_cases.value
    if activation is None or padding is None or not on_product or layer.num_experts % engine.ep_size:
        return None, found
    shared = plan_shared(layer, choice.use_case, profile, options)
    if options.fuse_shared_experts == "on" and shared.mode == "vllm":
        remedy = 'Set fuse_shared_experts to "auto": vLLM\'s own path is exact too.'
        found.append(Violation(layer.name, f"fuse_shared_experts = 'on', but {shared.reason}", "them fused", remedy))
    capacity, wrong_capacity = _capacity(engine, layer, profile, options, choice.use_case, padding, shared)
    found += wrong_capacity
    plan = _plan(engine, layer, profile, options, choice, activation, shared, padding, capacity)
    masked = capacity.pad == "dp_max" and (engine.data_parallel > 1 or engine.tokens == "replicated")
    call = call_facts(plan, engine.dtype, masked)
    broken = [*broken_by_buffer(profile, plan.buffer), *broken_by_call(profile, plan.buffer, call)]
    found += [of_product(profile.name, rule) for rule in broken]
    found += _window(engine, profile, plan.hccl_buffsize_mb)
    return plan, found


def _capacity(
    engine: EngineFacts,
    layer: MoeFacts,
    profile: Profile,
    options: Options,
    use_case: UseCase,
    padding: Padding,
    shared: SharedPlan,
) -> tuple[Capacity, list[Violation]]:
    """Rows of a step and of a call, and the receive capacity that the buffer gets."""
    # Rows that tensor-parallel ranks share are split over them, so each brings a share of the step's rows.
    shares = engine.tensor_parallel if engine.expert_parallel else 1
    rows = max(1, -(-engine.max_num_batched_tokens // shares))

    factor, asked = limits_of(profile).receive_factor_int4.value, options.max_recv_token_num

    def bound_of(tokens: int) -> int:
        return tokens * engine.ep_size * min(layer.topk, layer.num_experts // engine.ep_size)

    def receive(tokens: int, limit: int) -> int:
        if limit or use_case is not UseCase.A8W4_INT or factor < 2:
            return limit
        # The combine of W4A8 counts packed rows there, two for each token; 0 would not do (op 9aa8113f8 fixes it).
        return factor * bound_of(tokens)

    def workspace(tokens: int, limit: int) -> int:
        buffer = buffer_facts(layer, use_case, padding, engine.ep_size, tokens, receive(tokens, limit), options)
        width = padding.intermediate_hidden
        return workspace_bytes(
            profile, buffer, intermediate_hidden=width, use_case=use_case.value, shared_experts=shared.pieces
        )

    def least_workspace(tokens: int) -> int:
        # A limit saves memory only where rows may be lost; else it must hold all that can come, and so decides nothing.
        return workspace(tokens, asked if options.allow_token_drop and asked < bound_of(tokens) else 0)

    budget = int(options.workspace_budget_gib * GIB)
    chunk = largest_chunk(rows, limits_of(profile).max_tokens.value, least_workspace, budget)
    found = [] if chunk else [_budget(options, least_workspace(1))]
    chunk = -(-rows // -(-rows // max(chunk, 1)))
    bound, needed = bound_of(chunk), workspace(chunk, asked)
    if 0 < asked < bound and not options.allow_token_drop:
        sum_ = f"{chunk} rows x {engine.ep_size} ranks x min({layer.topk}, {layer.num_experts // engine.ep_size})"
        found.append(_receive(options, f"0 or at least {bound} = {sum_}", bound))
    elif asked > bound and not found and needed > budget:
        found.append(_receive(options, f"0 or {bound}: no more can come, and it needs {needed / GIB:.3f} GiB", bound))
    pad = _PADS[limits_of(profile).rows.value]
    return Capacity(rows, chunk, -(-rows // chunk), pad, receive(chunk, asked), bound, needed), found


def _budget(options: Options, least: int) -> Violation:
    expected = f"at least {math.ceil(1000 * least / GIB) / 1000:.3f}"
    got = f"workspace_budget_gib = {options.workspace_budget_gib:g}"
    return Violation("options", got, expected, "Raise workspace_budget_gib, or use more ranks.")


def _receive(options: Options, expected: str, bound: int) -> Violation:
    remedy = f"Set it to 0 or {bound}"
    if options.max_recv_token_num < bound:
        remedy += ", lower --max-num-batched-tokens, or accept lost rows with allow_token_drop"
    return Violation("options", f"max_recv_token_num = {options.max_recv_token_num}", expected, f"{remedy}.")


def _plan(
    engine: EngineFacts,
    layer: MoeFacts,
    profile: Profile,
    options: Options,
    choice: UseCaseChoice,
    activation: ActivationPlan,
    shared: SharedPlan,
    padding: Padding,
    capacity: Capacity,
) -> LayerPlan:
    buffer = buffer_facts(
        layer, choice.use_case, padding, engine.ep_size, capacity.chunk, capacity.max_recv_token_num, options
    )
    folds = shared.mode == "fused" and layer.scale_on_output
    experts = buffer.experts_per_rank + shared.pieces
    element = 4 if engine.dtype == "float32" else 2
    size = weight_bytes(choice.use_case.value, experts, padding.hidden, padding.intermediate_hidden)
    return LayerPlan(
        facts=layer,
        use_case=choice.use_case,
        loss=choice.loss,
        activation=activation,
        shared=shared,
        fold_scaling=layer.routed_scaling_factor if folds else 1.0,
        # A list keeps each expert movable; only where the product takes none, a stack is made.
        stacked="list" not in limits_of(profile).layouts.value,
        padding=padding,
        capacity=capacity,
        buffer=buffer,
        tokens=engine.tokens,
        profile=profile,
        backend=options.backend,
        weight_bytes=size * element // 2 if choice.use_case is UseCase.A16W16 else size,
        window_bytes=window_memory(profile, buffer),
        hccl_buffsize_mb=hccl_buffsize_mb(profile, buffer),
    )


def _window(engine: EngineFacts, profile: Profile, needed: int | None) -> list[Violation]:
    have = engine.hccl_buffsize_mb
    if needed is None or have is None or have >= needed:
        return []
    expected = f"at least {needed} (MB of one half of the communicator's window; op tiling arch22, ccl_buffer_size)"
    return [
        Violation(profile.name, f"HCCL_BUFFSIZE={have}", expected, f"Set HCCL_BUFFSIZE={needed} in the environment.")
    ]
