"""The answer in a sentence."""

from vllm_megamoe.cli.model.facts import Model
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.profiles.profile import Profile


def summary_of(model: Model, engine: EngineFacts, profile: Profile, violated: int) -> str:
    """One sentence: nothing to do, the plan holds, or how many rules are violated."""
    if model.only_quantisation:
        return (
            "This file describes a quantisation and no layers: there is nothing to plan. Give the checkpoint's "
            "config.json; a file like this one beside it is read too."
        )
    if not model.layers:
        return "This model has no MoE layer: --quantization megamoe would change nothing."
    ranks = f"{engine.ep_size} rank" + ("s" if engine.ep_size > 1 else "")
    where = f"under profile {profile.name} on {ranks}"
    if violated:
        rules = "1 rule is violated" if violated == 1 else f"{violated} rules are violated"
        return f"It cannot be served {where}: {rules}."
    return f"The plan holds {where}."
