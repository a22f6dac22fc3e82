"""Arguments of creation that 9.1.0 does not have."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import API
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule


@buffer_rule("buffer-arguments")
def buffer_arguments(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """They came later, so that only their default can be said."""
    if profile.revision != "9.1":
        return None
    for name in ("topk_weights_type", "combine_comm_mode"):
        value = getattr(buffer, name)
        if value:
            remedy = "Leave it at 0, or use an operator of revision 9.2."
            return Broken(name, str(value), "0: 9.1.0 has no such argument", f"{API}:291", remedy)
    return None
