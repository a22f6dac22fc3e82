"""All layers of a communicator must have one operator configuration (operator_readme.txt, consistency constraints).

The window of a communicator is laid out by it: a layer with another one reads the other's flags and rows. On 950 a
communicator has a single buffer in the first place.
"""

from collections.abc import Sequence

from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.violation import Violation
from vllm_megamoe.profiles.profile import Profile


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
