"""The plan of a whole model: every decision, taken once from facts, options and profile, before a weight is read.

All layers of a communicator must have one operator configuration (operator_readme.txt, consistency constraints): its
window is laid out by it, and a layer with another one reads the other's flags and rows. On 950 a communicator has a
single buffer in the first place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vllm_megamoe.plan import rules
from vllm_megamoe.plan.agreement import Agreement, agree, common_use_cases, harmonised
from vllm_megamoe.plan.capacity import receive_factor
from vllm_megamoe.plan.decide import decide
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.screen import layer_numbers
from vllm_megamoe.plan.use_case import allowed_ways
from vllm_megamoe.plan.verdict import Rejected, Violation, merge, rejection_of
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.limits import legal_ep_sizes, limits_of
from vllm_megamoe.profiles.profile import Profile, find_profile


def make_plan(
    engine: EngineFacts, layers: Iterable[MoeFacts], options: Options, wrong_options: Iterable[str] = ()
) -> Plan:
    """Plan a whole model.

    Args:
        wrong_options: sentences about options that could not be read; they come in the same error.

    Raises:
        ConfigError: with every violated rule of every layer and its remedy.
    """
    verdict = draft_plan(engine, layers, options)
    sentences = [*wrong_options, *map(str, violations_of(verdict))]
    if sentences or isinstance(verdict, Rejected):
        raise rejection_of(sentences)
    return verdict


def plan_layer(engine: EngineFacts, layer: MoeFacts, options: Options, agreed: Agreement | None = None) -> LayerPlan:
    """The same decisions for one layer, as the running engine has it.

    Args:
        agreed: with the other layers of its communicator; None for a layer alone.

    Raises:
        ConfigError: with every violated rule and its remedy.
    """
    verdict = draft_plan(engine, [layer], options, agreed)
    if isinstance(verdict, Rejected):
        raise rejection_of(list(map(str, verdict.violations)))
    return verdict.layers[0]


def draft_plan(
    engine: EngineFacts, layers: Iterable[MoeFacts], options: Options, agreed: Agreement | None = None
) -> Plan | Rejected[Plan]:
    """The plan; or every rule that is violated, with a draft of the layers that can be planned all the same.

    Args:
        agreed: what all of these layers have agreed upon with others; None for layers that are the whole model.

    Raises:
        ConfigError: the profile's name, from which all else follows, is unknown.
    """
    profile = find_profile(options.chosen_profile, options.topology)
    layers = tuple(layers)
    legal = legal_ep_sizes(limits_of(profile), (layer.physical_experts for layer in layers))
    told = {layer.name: agreed for layer in layers if agreed} or agree(layers, profile, options, engine.dtype)
    verdicts = [decide(engine, layer, profile, options, legal, told[layer.name]) for layer in layers]
    if agreed is None and (again := _with_one_capacity(_drafts(verdicts), told, profile)) != told:
        verdicts = [
            before
            if again[layer.name] == told[layer.name]
            else decide(engine, layer, profile, options, legal, again[layer.name])
            for layer, before in zip(layers, verdicts, strict=True)
        ]
    planned = tuple(_drafts(verdicts))
    found = rules.of_engine(engine, profile, options) if layers else []
    found += [violation for verdict in verdicts for violation in violations_of(verdict)]
    found += one_configuration(planned, profile, options, engine.dtype)
    plan = Plan(engine, options, profile, planned)
    if not found:
        return plan
    first, *more = merge(found)
    return Rejected(first, *more, draft=plan)


def violations_of(verdict: object) -> tuple[Violation, ...]:
    """The reasons of a refusal; none of a plan."""
    return verdict.violations if isinstance(verdict, Rejected) else ()


def plan_of(verdict: Plan | Rejected[Plan]) -> Plan:
    """The plan, or the draft that stands beside a refusal: for a reader, never to be run."""
    return verdict.draft if isinstance(verdict, Rejected) else verdict


def _drafts(verdicts: Iterable[LayerPlan | Rejected[LayerPlan | None]]) -> list[LayerPlan]:
    drafts = [verdict.draft if isinstance(verdict, Rejected) else verdict for verdict in verdicts]
    return [draft for draft in drafts if draft is not None]


def _with_one_capacity(
    planned: Sequence[LayerPlan], told: Mapping[str, Agreement], profile: Profile
) -> dict[str, Agreement]:
    """Draft layers of another kind on a communicator of their own, and one capacity on each communicator."""
    main = {_sizes(plan) for plan in planned if not plan.facts.draft}
    drafts = [plan.facts.name for plan in planned if plan.facts.draft and main and _sizes(plan) not in main]
    rows = {plan.facts.name: plan.capacity.chunk for plan in planned}
    factors = {plan.facts.name: receive_factor(plan.use_case, profile) for plan in planned}
    return harmonised(told, rows, factors, drafts)


def _sizes(plan: LayerPlan) -> BufferFacts:
    """A layer's operator configuration without its capacity, which can be made one."""
    return replace(plan.buffer, num_max_tokens_per_rank=0, max_recv_token_num=0)


def one_configuration(plans: Sequence[LayerPlan], profile: Profile, options: Options, dtype: str) -> list[Violation]:
    """Each further configuration of a communicator, with all of its layers.

    The twin without a profile takes any sizes; what is dispatched must be one type there too, because a plan that holds
    nowhere else helps nobody.
    """
    found = []
    for communicator in ("main", "draft"):
        groups: dict[object, list[LayerPlan]] = {}
        for plan in plans:
            if plan.communicator == communicator:
                dispatch = plan.buffer.dispatch_quant_mode, plan.buffer.dispatch_quant_out_dtype
                groups.setdefault(dispatch if profile.product == "none" else plan.buffer, []).append(plan)
        first, *others = list(groups.values()) or [[]]
        found += [_in_the_way(first, other, profile, options, dtype) for other in others]
    return found


def _in_the_way(
    first: Sequence[LayerPlan], others: Sequence[LayerPlan], profile: Profile, options: Options, dtype: str
) -> Violation:
    mine, theirs = first[0].buffer, others[0].buffer
    fields = [name for name in type(mine).__dataclass_fields__ if getattr(theirs, name) != getattr(mine, name)]
    differences = [f"{name} {getattr(theirs, name)} instead of {getattr(mine, name)}" for name in fields]
    kind = "draft layer" if others[0].facts.draft else "layer"
    kinds = f"{kind}{'s' if len(others) > 1 else ''} {layer_numbers(others)} ({_as_run(others)})"
    got = f"{kinds} with {', '.join(differences)} on the communicator of {_named(first)} ({_as_run(first)})"
    expected = "one operator configuration per communicator (operator_readme.txt, consistency constraints)"
    consented = options.model_copy(update={"requant": "allow", "use_case": "auto"})
    layers = {plan.facts.experts_format: plan.facts for plan in (*first, *others)}.values()
    ways = [allowed_ways(layer, profile, consented, dtype) for layer in layers]
    by_type_alone = set(fields) <= {"dispatch_quant_mode", "dispatch_quant_out_dtype"}
    if options.requant != "allow" and by_type_alone and common_use_cases(ways):
        remedy = 'Add "requant": "allow" to the megamoe options: with a loss one type holds all of these layers.'
    elif others[0].facts.draft:
        remedy = "Serve without the draft model (drop --speculative-config)."
    else:
        remedy = "Serve this model without --quantization megamoe, or quantise all of its experts alike."
    return Violation(others[0].facts.name, got, expected, remedy)


def _as_run(plans: Sequence[LayerPlan]) -> str:
    return ", ".join(dict.fromkeys(f"{plan.use_case.value} from {plan.facts.experts_format}" for plan in plans))


def _named(plans: Sequence[LayerPlan]) -> str:
    return plans[0].facts.name if len(plans) == 1 else f"layers {layer_numbers(plans)}"
