"""All layers of a communicator must have one operator configuration (operator_readme.txt, consistency constraints).

The window of a communicator is laid out by it: a layer with another one reads the other's flags and rows. On 950 a
communicator has a single buffer in the first place.

The plan: every decision, taken once from facts, options and profile, before a weight is read.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.decide import decide
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.profiles.profile import Profile, find_profile


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


def make_plan(
    engine: EngineFacts, layers: Iterable[MoeFacts], options: Options, wrong_options: Iterable[str] = ()
) -> Plan:
    """Plan a whole model.

    Args:
        wrong_options: sentences about options that could not be read; they come in the same error.

    Raises:
        ConfigError: with every violated rule of every layer and its remedy.
    """
    plan, found = draft_plan(engine, layers, options)
    _reject([*wrong_options, *map(str, found)])
    return plan


def plan_layer(engine: EngineFacts, layer: MoeFacts, options: Options) -> LayerPlan:
    """The same decisions for one layer, as the running engine has it.

    Raises:
        ConfigError: with every violated rule and its remedy.
    """
    return make_plan(engine, [layer], options).layers[0]


def find_violations(engine: EngineFacts, layers: Iterable[MoeFacts], options: Options) -> list[Violation]:
    """Every violated rule, none of them raised."""
    return draft_plan(engine, layers, options)[1]


def draft_plan(engine: EngineFacts, layers: Iterable[MoeFacts], options: Options) -> tuple[Plan, list[Violation]]:
    """What can be planned, beside every rule that is violated.

    Raises:
        ConfigError: the profile's name, from which all else follows, is unknown.
    """
    profile = find_profile(options.chosen_profile, options.topology)
    decided = [decide(engine, layer, profile, options) for layer in layers]
    plans = tuple(plan for plan, _ in decided if plan is not None)
    found = [violation for _, violations in decided for violation in violations]
    found += one_configuration(plans, profile)
    return Plan(engine, options, profile, plans), _merge(found)


def _merge(found: Iterable[Violation]) -> list[Violation]:
    """Say a rule once that many layers break, with the first of them and their number."""
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for violation in found:
        where = places[violation.got, violation.expected, violation.remedy]
        if violation.where not in where:
            where.append(violation.where)
    return [
        Violation(where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more", *rule)
        for rule, where in places.items()
    ]


def _reject(sentences: list[str]) -> None:
    if sentences:
        lines = [f"--quantization megamoe cannot serve this, {len(sentences)} rule(s) violated:"]
        lines += [f"  {i}. {sentence}" for i, sentence in enumerate(sentences, 1)]
        raise ConfigError("\n".join(lines))
