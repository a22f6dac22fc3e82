"""All decisions about one layer, in order; each later one builds upon the earlier ones."""

from collections.abc import Sequence
from dataclasses import replace

from vllm_megamoe.plan import rules
from vllm_megamoe.plan.activation import ActivationPlan, activation_of
from vllm_megamoe.plan.agreement import ALONE, Agreement
from vllm_megamoe.plan.capacity import plan_capacity
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, buffer_facts, call_facts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.padding import Padding, plan_padding
from vllm_megamoe.plan.shared import SharedPlan, plan_shared
from vllm_megamoe.plan.use_case import UseCaseChoice, choose_use_case
from vllm_megamoe.plan.verdict import Rejected, Violation, of_product, told_once
from vllm_megamoe.profiles.limits import legal_ep_sizes, limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call
from vllm_megamoe.profiles.sizes.memory import weight_bytes, workspace_bytes
from vllm_megamoe.profiles.sizes.window import hccl_buffsize_mb, window_memory
from vllm_megamoe.profiles.use_cases import UseCase


def decide(
    engine: EngineFacts,
    layer: MoeFacts,
    profile: Profile,
    options: Options,
    legal_ranks: Sequence[int] = (),
    agreed: Agreement = ALONE,
) -> LayerPlan | Rejected[LayerPlan | None]:
    """Plan one layer.

    Args:
        legal_ranks: numbers of ranks that suit all layers of the model; empty where no other layer is known.
        agreed: with the other layers of its communicator.

    Returns:
        The plan; or every rule that is violated, with what could be planned all the same.
    """
    engine = _as_it_must_run(engine, profile)
    found = rules.of_layer(engine, layer)
    ranks = _wrong_ranks(engine, layer, profile, legal_ranks)
    choice = choose_use_case(layer, profile, options, engine.dtype, agreed.use_cases)
    activation = activation_of(layer, profile)
    if isinstance(choice, Rejected):
        others = _with_every_use_case(engine, layer, profile, options, legal_ranks)
        return Rejected(*choice.violations, *others, draft=None) if others else choice.beside(found, ranks, activation)
    found += choice.wrong
    padded = plan_padding(layer, choice.use_case, profile, options)
    if isinstance(ranks, Rejected):
        return ranks.beside(found, activation, padded)
    if isinstance(padded, Rejected):
        return padded.beside(found, activation)
    padding, unpaid = padded
    shared = plan_shared(layer, choice.use_case, profile, options, lora=engine.lora)
    found += unpaid + _unfused(layer, shared, options)
    # With a refused activation the rest is judged as it will be with one that every product has.
    judged = ActivationPlan("swiglu") if isinstance(activation, Rejected) else activation
    plan, wrong = _plan(engine, layer, profile, options, choice, judged, shared, padding, agreed)
    found += wrong + _broken(engine, plan)
    if isinstance(activation, Rejected):
        return activation.beside(found)
    if not found:
        return plan
    first, *more = found
    return Rejected(first, *more, draft=plan)


def _as_it_must_run(engine: EngineFacts, profile: Profile) -> EngineFacts:
    """Ranks without expert parallelism and rows that are not bfloat16 have rules of their own: judge the rest without.

    Float32 rows are real in the twin alone.
    """
    several = engine.tensor_parallel * engine.data_parallel > 1
    dtype = engine.dtype if profile.product == "none" else "bfloat16"
    return replace(engine, expert_parallel=several or engine.expert_parallel, dtype=dtype)


def _with_every_use_case(
    engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options, legal_ranks: Sequence[int]
) -> list[Violation]:
    """The rules that stay violated whichever of the profile's use cases is chosen in place of a refused one."""
    found: list[tuple[Violation, ...]] = []
    for case in sorted(limits_of(profile).use_cases.value):
        chosen = options.model_copy(update={"use_case": case.value, "requant": "allow"})
        if not isinstance(choose_use_case(layer, profile, chosen, engine.dtype), Rejected):
            verdict = decide(engine, layer, profile, chosen, legal_ranks)
            found.append(verdict.violations if isinstance(verdict, Rejected) else ())
    return [violation for violation in found[0] if all(violation in other for other in found)] if found else []


def _wrong_ranks(engine: EngineFacts, layer: MoeFacts, profile: Profile, legal: Sequence[int]) -> Rejected[None] | None:
    """Each rank holds the same number of whole experts, and a header of the twin no more than it has room for."""
    experts, ranks, limits = layer.physical_experts, engine.ep_size, limits_of(profile)
    most = limits.max_experts_per_rank.value
    if experts % ranks or not experts:
        got, expected = (
            f"{experts} experts do not divide over {ranks} ranks",
            "the same number of experts on every rank",
        )
    elif profile.product == "none" and experts // ranks > most:
        got, expected = f"{experts} experts over {ranks} ranks", f"at most {most} on a rank"
    else:
        return None
    sizes = list(legal or legal_ep_sizes(limits, [experts]))
    remedy = f"Choose tensor parallel x data parallel from {sizes}."
    if not sizes:
        remedy = f"No number of ranks suits this model under {profile.name}: serve it without --quantization megamoe."
    return Rejected(Violation(layer.name, got, expected, remedy), draft=None)


def _unfused(layer: MoeFacts, shared: SharedPlan, options: Options) -> list[Violation]:
    if options.fuse_shared_experts != "on" or shared.mode != "vllm":
        return []
    remedy = 'Set fuse_shared_experts to "auto": vLLM\'s own path is exact too.'
    return [Violation(layer.name, f"fuse_shared_experts = 'on', but {shared.reason}", "them fused", remedy)]


def _plan(
    engine: EngineFacts,
    layer: MoeFacts,
    profile: Profile,
    options: Options,
    choice: UseCaseChoice,
    activation: ActivationPlan,
    shared: SharedPlan,
    padding: Padding,
    agreed: Agreement,
) -> tuple[LayerPlan, list[Violation]]:
    use_case, width = choice.use_case, padding.intermediate_hidden

    def workspace_of(rows: int, received: int) -> int:
        buffer = buffer_facts(layer, use_case, padding, engine.ep_size, rows, received, options)
        return workspace_bytes(
            profile, buffer, intermediate_hidden=width, use_case=use_case.value, shared_experts=shared.pieces
        )

    capacity, wrong = plan_capacity(engine, layer, use_case, profile, options, workspace_of, agreed)
    buffer = buffer_facts(
        layer, use_case, padding, engine.ep_size, capacity.chunk, capacity.max_recv_token_num, options
    )
    folds = shared.mode == "fused" and layer.scale_on_output
    element = 4 if engine.dtype == "float32" else 2
    size = weight_bytes(use_case.value, buffer.experts_per_rank, padding.hidden, width)
    if shared.use_case is not None:
        size += weight_bytes(shared.use_case.value, shared.pieces, padding.hidden, width)
    plan = LayerPlan(
        facts=layer,
        use_case=use_case,
        loss=choice.loss,
        strict=options.requant != "allow",
        agreed=agreed,
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
        weight_bytes=size * element // 2 if use_case is UseCase.A16W16 else size,
        window_bytes=window_memory(profile, buffer),
        hccl_buffsize_mb=hccl_buffsize_mb(profile, buffer),
    )
    return plan, wrong


def _broken(engine: EngineFacts, plan: LayerPlan) -> list[Violation]:
    """What the product says of the largest call of the layer, and of the window that the environment has for it."""
    profile = plan.profile
    fills_up = engine.data_parallel > 1 or engine.own_rows or engine.tokens == "replicated"
    masked = plan.capacity.pad == "dp_max" and fills_up
    call = call_facts(plan, engine.dtype, masked)
    broken = [*broken_by_buffer(profile, plan.buffer), *broken_by_call(profile, plan.buffer, call)]
    found = [of_product(profile.name, rule) for rule in told_once(broken)]
    have, needed = engine.hccl_buffsize_mb, plan.hccl_buffsize_mb
    if needed is not None and have is not None and have < needed:
        expected = f"at least {needed} (MB of one half of the communicator's window; op tiling arch22, ccl_buffer_size)"
        remedy = f"Set HCCL_BUFFSIZE={needed} in the environment."
        found.append(Violation(profile.name, f"HCCL_BUFFSIZE={have}", expected, remedy))
    return found
