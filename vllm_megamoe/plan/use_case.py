"""Which of the operator's use cases a layer runs as, from its checkpoint format, the product and the user's word."""

from dataclasses import dataclass

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Rejected, Violation
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.losses import LOSSES, OUTPUT
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import UseCase

LOSS = LOSSES["bf16"]
"""What BF16 experts can be converted to, and what that loses; A16W16 keeps them (experts.convert builds these)."""

CONVERTIBLE = (UseCase.A16W16, *LOSS)
"""Use cases that BF16 experts can run as, the exact one first."""


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


def choose_use_case(layer: MoeFacts, profile: Profile, options: Options, dtype: str) -> UseCaseChoice | Rejected[None]:
    """Choose, and say what speaks against it; refused where the profile has no such use case.

    Only BF16 experts can be loaded yet. Of other formats the rule about formats speaks, and the choice stands for what
    the product runs.
    """
    limits = limits_of(profile).use_cases
    # On a product float32 is refused whatever the use case is (plan.rules.dtype).
    exact_only = dtype == "float32" and profile.product == "none"
    if options.use_case == "auto":
        chosen = _most_exact(limits.value)
    else:
        chosen = UseCase(options.use_case)
        if chosen not in limits.value:
            got = f"{chosen.value} on {profile.name}"
            return Rejected(_another(got, limits.value, options, exact_only, limits.source), draft=None)
    if layer.experts_format != BF16:
        return UseCaseChoice(chosen)
    loss = "" if chosen is UseCase.A16W16 else str(LOSS[chosen])
    wrong = [_consent(chosen, loss, profile, options)] if loss and options.requant != "allow" else []
    if exact_only and chosen is not UseCase.A16W16:
        expected = "bfloat16 (float32 is the twin's a16w16 without roundings)"
        remedy = "Add --dtype bfloat16, or drop use_case."
        wrong.append(Violation("use_case", f"float32 with use case {chosen.value}", expected, remedy))
    return UseCaseChoice(chosen, loss, tuple(wrong))


def _most_exact(runs: frozenset[UseCase]) -> UseCase:
    """Without a word from the user BF16 experts become the use case that loses least."""
    return min(
        (case for case in CONVERTIBLE if case in runs), key=lambda case: LOSS[case].most if case in LOSS else 0.0
    )


def _another(got: str, runs: frozenset[UseCase], options: Options, exact_only: bool, source: str) -> Violation:
    """The choice was no choice: name those that are, and what else they ask for."""
    offered = [case for case in CONVERTIBLE if case in runs and not (exact_only and case in LOSS)]
    remedy = "Set use_case to one of them, or drop it"
    lossy = [case.value for case in offered if case in LOSS]
    if lossy and options.requant != "allow":
        remedy += (
            f'; add "requant": "allow" for {", ".join(lossy)}, which lose{"s" if len(lossy) == 1 else ""} precision'
        )
    expected = f"one of {', '.join(case.value for case in offered)} ({source})"
    return Violation("use_case", got, expected, f"{remedy}.")


def _consent(chosen: UseCase, loss: str, profile: Profile, options: Options) -> Violation:
    remedy = 'Add "requant": "allow" to the megamoe options'
    if options.use_case == "auto":
        remedy += f", because {profile.name} has no use case that keeps BF16"
    elif UseCase.A16W16 in limits_of(profile).use_cases.value:
        remedy += ", or drop use_case"
    got = f"{chosen.value} from BF16 experts is lossy ({loss} of the weights' rms, a layer's output {OUTPUT[chosen]})"
    return Violation("use_case", got, "consent", f"{remedy}.")
