"""The plan of a whole model: every decision, taken once from facts, options and profile, before a weight is read.

All layers of a communicator must have one operator configuration (operator_readme.txt, consistency constraints): its
window is laid out by it, and a layer with another one reads the other's flags and rows. On 950 a communicator has a
single buffer in the first place.
"""

from collections.abc import Iterable, Sequence

from vllm_megamoe.plan import rules
from vllm_megamoe.plan.decide import decide
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Rejected, Violation, merge, rejection_of
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


def plan_layer(engine: EngineFacts, layer: MoeFacts, options: Options) -> LayerPlan:
    """The same decisions for one layer, as the running engine has it.

    Raises:
        ConfigError: with every violated rule and its remedy.
    """
    return make_plan(engine, [layer], options).layers[0]


def draft_plan(engine: EngineFacts, layers: Iterable[MoeFacts], options: Options) -> Plan | Rejected[Plan]:
    """The plan; or every rule that is violated, with a draft of the layers that can be planned all the same.

    Raises:
        ConfigError: the profile's name, from which all else follows, is unknown.
    """
    profile = find_profile(options.chosen_profile, options.topology)
    layers = tuple(layers)
    legal = legal_ep_sizes(limits_of(profile), (layer.num_experts for layer in layers))
    verdicts = [decide(engine, layer, profile, options, legal) for layer in layers]
    drafts = [verdict.draft if isinstance(verdict, Rejected) else verdict for verdict in verdicts]
    planned = tuple(draft for draft in drafts if draft is not None)
    found = rules.of_engine(engine, profile, options) if layers else []
    found += [violation for verdict in verdicts for violation in violations_of(verdict)]
    found += one_configuration(planned, profile)
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


def one_configuration(plans: Sequence[LayerPlan], profile: Profile) -> list[Violation]:
    """The first layer of each further configuration; the twin without a profile takes any number of them."""
    if profile.product == "none" or not plans:
        return []
    first = plans[0]
    found = []
    for other in {plan.buffer: plan for plan in reversed(plans)}.values():
        if other.buffer == first.buffer:
            continue
        differences = [
            f"{name} {getattr(other.buffer, name)} instead of {getattr(first.buffer, name)}"
            for name in type(first.buffer).__dataclass_fields__
            if getattr(other.buffer, name) != getattr(first.buffer, name)
        ]
        kind = "draft layer" if other.facts.draft else "layer"
        found.append(
            Violation(
                other.facts.name,
                f"a {kind} with {', '.join(differences)} on the communicator of {first.facts.name}",
                "one operator configuration per communicator (operator_readme.txt, consistency constraints)",
                "Serve without the draft model (drop --speculative-config)."
                if other.facts.draft
                else "Serve this model without --quantization megamoe.",
            )
        )
    return found
