"""The workspace of a call."""

from vllm_megamoe.profiles.call_facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes import workspace_950, workspace_a2_a3
from vllm_megamoe.profiles.sizes.names import use_case_on


def workspace_bytes(
    profile: Profile,
    buffer: BufferFacts,
    *,
    intermediate_hidden: int,
    use_case: str,
    rows: int | None = None,
    shared_experts: int = 0,
    shared_intermediate_hidden: int | None = None,
) -> int:
    """Bytes of workspace that a call takes from the torch allocator; all layers use the same one in turn.

    Profile `none`: 0, the twin's temporaries are no workspace. Where the formula counts cores, the product's largest
    die stands for all, so the figure is never too small for a smaller one.

    Args:
        intermediate_hidden: I of the routed experts.
        use_case: value of UseCase.
        rows: tokens of the call on each rank; None for num_max_tokens_per_rank.
        shared_experts: fused shared experts (950@9.2).
        shared_intermediate_hidden: their I; None for that of the routed ones.

    Raises:
        ConfigError: no such use case, or the product does not run it.
    """
    known = use_case_on(profile, use_case)
    tokens = buffer.num_max_tokens_per_rank if rows is None else rows
    if profile.product == "none":
        return 0
    if profile.is_a2_a3:
        return workspace_a2_a3.workspace_bytes(profile, buffer, known, intermediate_hidden, tokens)
    width = intermediate_hidden if shared_intermediate_hidden is None else shared_intermediate_hidden
    call = workspace_950.make_call(profile, buffer, known, intermediate_hidden, tokens, (shared_experts, width))
    return workspace_950.workspace_bytes(call)
