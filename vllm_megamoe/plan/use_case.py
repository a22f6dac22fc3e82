"""Which of the operator's use cases a layer runs as, from its checkpoint format, the product and the user's word."""

from dataclasses import dataclass

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

LOSS = {
    UseCase.A8W8_INT: "1.4 %",
    UseCase.A8W8_FP: "2.9 %",
    UseCase.A8W4_FP: "11 %",
    UseCase.A4W4_FP: "11 %",
}
"""Error of a Gaussian weight's rms after the conversion from BF16 (tests/plan/test_use_case.py measures it)."""

# Without a word from the user BF16 experts become the product's most exact use case.
_PREFERRED = {"a2": UseCase.A16W16, "a3": UseCase.A16W16, "none": UseCase.A16W16, "950": UseCase.A8W8_FP}


@dataclass(frozen=True, slots=True)
class UseCaseChoice:
    """A use case, and what is wrong with it.

    Attributes:
        use_case: as chosen.
        loss: rms error of the conversion, empty for an exact one.
        wrong: (got, expected, remedy) for each rule that it breaks.
    """

    use_case: UseCase
    loss: str
    wrong: tuple[tuple[str, str, str], ...]


def choose_use_case(layer: MoeFacts, profile: Profile, options: Options, dtype: str) -> UseCaseChoice:
    """Choose, and say what speaks against it; only BF16 experts can be loaded yet."""
    chosen = _PREFERRED[profile.product] if options.use_case == "auto" else UseCase(options.use_case)
    wrong: list[tuple[str, str, str]] = []
    if profile.product != "none" and profile.product not in USE_CASES[chosen].products:
        legal = [str(u.value) for u, facts in USE_CASES.items() if profile.product in facts.products]
        wrong.append((f"{chosen.value} on {profile.name}", f"one of {', '.join(legal)}", "Change use_case."))
    loss = "" if chosen is UseCase.A16W16 else LOSS.get(chosen, "")
    if layer.experts_format != BF16:
        # The rule about formats speaks; nothing else can be said of a conversion that does not exist.
        return UseCaseChoice(chosen, "", tuple(wrong))
    if chosen is not UseCase.A16W16 and not loss:
        built = ", ".join(u.value for u in (UseCase.A16W16, *LOSS))
        wrong.append(
            (f"{chosen.value} from BF16 experts", f"one of {built}; no other conversion is built", "Change use_case.")
        )
    elif loss and options.requant != "allow":
        remedy = 'Add "requant": "allow" to the megamoe options'
        if options.use_case != "auto":
            remedy += ", or drop use_case"
        else:
            remedy += f", because {profile.name} has no use case that keeps BF16"
        wrong.append((f"{chosen.value} from BF16 experts is lossy (about {loss} of the rms)", "consent", remedy + "."))
    if dtype == "float32" and chosen is not UseCase.A16W16:
        wrong.append(
            (
                f"float32 with use case {chosen.value}",
                "bfloat16 (float32 is the twin's a16w16 without roundings)",
                "Add --dtype bfloat16, or drop use_case.",
            )
        )
    return UseCaseChoice(chosen, loss, tuple(wrong))
