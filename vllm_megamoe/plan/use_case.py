"""Which of the operator's use cases a layer runs as, from its checkpoint format, the product and the user's word.

    auto      the exact one with the fewest bytes that the product has (the format's own order); without one, and with
              consent, the lossy one that loses least
    a name    that one, with consent where it is lossy; refused where the format or the product has no way to it

In profile `none` every use case runs, so BF16 and integers go where A3 puts them and MX where 950 does.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Rejected, Violation
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.losses import Loss, told
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import UseCase

Ways = Mapping[UseCase, Loss | None]
"""Use cases that experts can run as, the best first; None beside those that keep every number."""


@dataclass(frozen=True, slots=True)
class UseCaseChoice:
    """A use case that can be planned, and what is wrong with it.

    Attributes:
        use_case: as chosen.
        loss: of the conversion, empty for an exact one.
        wrong: the rules that it breaks.
    """

    use_case: UseCase
    loss: str = ""
    wrong: tuple[Violation, ...] = ()


def ways_of(layer: MoeFacts, profile: Profile, dtype: str) -> Ways:
    """All that the profile has for a layer's experts, lossy ones too; none for a format that cannot be read.

    float32 is the twin's A16W16, which holds the numbers of every format that is more than a use case's operands.
    """
    facts, runs = layer.experts_format.facts, limits_of(profile).use_cases.value
    ways: dict[UseCase, Loss | None] = {}
    if _is_twins_float32(dtype, profile) and facts.losses:
        ways[UseCase.A16W16] = None
    ways |= {UseCase(name): None for name in facts.use_cases if UseCase(name) not in ways}
    for case, loss in facts.losses.items():
        ways.setdefault(case, loss)
    return {case: loss for case, loss in ways.items() if case in runs}


def allowed_ways(layer: MoeFacts, profile: Profile, options: Options, dtype: str) -> Ways:
    """Those that the user has consented to and the dtype allows."""
    alone = _is_twins_float32(dtype, profile)
    return {
        case: loss
        for case, loss in ways_of(layer, profile, dtype).items()
        if (loss is None or options.requant == "allow") and (case is UseCase.A16W16 or not alone)
    }


def choose_use_case(
    layer: MoeFacts,
    profile: Profile,
    options: Options,
    dtype: str,
    within: Collection[UseCase] | None = None,
) -> UseCaseChoice | Rejected[None]:
    """Choose, and say what speaks against it; refused where format or profile have no such use case.

    Of a format that cannot be read the rule about formats speaks, and the choice stands for what the product runs.

    Args:
        within: use cases that suit all layers of the communicator, for a choice that is the plan's; None for any.
    """
    runs, ways = limits_of(profile).use_cases, ways_of(layer, profile, dtype)
    unread = not layer.experts_format.facts.stored
    if unread:
        ways = dict.fromkeys(case for case in UseCase if case in runs.value)
    if not ways:
        return Rejected(_no_way(layer, profile), draft=None)
    if options.use_case == "auto":
        chosen = next((case for case in ways if within is None or case in within), next(iter(ways)))
    else:
        chosen = UseCase(options.use_case)
        if chosen not in ways:
            return Rejected(_another(chosen, layer, profile, options, dtype, ways), draft=None)
    if unread:
        return UseCaseChoice(chosen)
    loss = ways[chosen]
    wrong = [_consent(chosen, layer, profile, options)] if loss and options.requant != "allow" else []
    if _is_twins_float32(dtype, profile) and chosen is not UseCase.A16W16:
        expected = "bfloat16 (float32 is the twin's a16w16 without roundings)"
        remedy = "Add --dtype bfloat16, or drop use_case."
        wrong.append(Violation("use_case", f"float32 with use case {chosen.value}", expected, remedy))
    return UseCaseChoice(chosen, str(loss or ""), tuple(wrong))


def _no_way(layer: MoeFacts, profile: Profile) -> Violation:
    """Operands of another product, which nothing converts."""
    facts, runs = layer.experts_format.facts, limits_of(profile).use_cases
    expected = f"experts that can become one of {', '.join(case.value for case in UseCase if case in runs.value)}"
    remedy = "Convert its source for this product (vllm-megamoe convert), or use another checkpoint of this model."
    got = f"{facts.name} experts, which are {' or '.join(facts.use_cases)}, on {profile.name}"
    return Violation(layer.name, got, f"{expected} ({runs.source})", remedy)


def _is_twins_float32(dtype: str, profile: Profile) -> bool:
    """On a product float32 is refused whatever the use case is (plan.rules.dtype)."""
    return dtype == "float32" and profile.product == "none"


def _another(chosen: UseCase, layer: MoeFacts, profile: Profile, options: Options, dtype: str, ways: Ways) -> Violation:
    """The choice was no choice: name those that are, and what else they ask for."""
    runs = limits_of(profile).use_cases
    offered = [case for case in ways if case is UseCase.A16W16 or not _is_twins_float32(dtype, profile)]
    remedy = "Set use_case to one of them, or drop it"
    lossy = [case.value for case in offered if ways[case]]
    if lossy and options.requant != "allow":
        remedy += (
            f'; add "requant": "allow" for {", ".join(lossy)}, which lose{"s" if len(lossy) == 1 else ""} precision'
        )
    got, source = f"{chosen.value} on {profile.name}", runs.source
    if chosen in runs.value:
        got, source = f"{chosen.value} from {layer.experts_format} experts", "what their numbers can become"
    expected = f"one of {', '.join(case.value for case in offered)} ({source})"
    return Violation("use_case", got, expected, f"{remedy}.")


def _consent(chosen: UseCase, layer: MoeFacts, profile: Profile, options: Options) -> Violation:
    form, ways = layer.experts_format, ways_of(layer, profile, "bfloat16")
    remedy = 'Add "requant": "allow" to the megamoe options'
    exact = [case.value for case, loss in ways.items() if loss is None]
    if options.use_case == "auto":
        remedy += f", because {profile.name} has no use case that surely keeps the numbers of {form}"
    elif exact:
        remedy += f", or drop use_case: {exact[0]} keeps every number"
    got = f"{chosen.value} from {_label(layer)} experts is lossy ({told(str(ways[chosen]), chosen)})"
    return Violation("use_case", got, "consent", f"{remedy}.")


def _label(layer: MoeFacts) -> str:
    facts = layer.experts_format.facts
    return facts.label if facts.name == "bf16" else facts.name
