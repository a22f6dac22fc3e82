"""What all size formulas start from: units and rounding, the rows that a call makes room for, use cases by name."""

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.limits import limits_of, profiles_with
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import UseCase

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def ceil_div(value: int, divisor: int) -> int:
    """`value / divisor`, rounded up."""
    return -(-value // divisor)


def received_rows(profile: Profile, buffer: BufferFacts, rows: int | None = None) -> int:
    """M' of the formulas: max_recv_token_num, or where it is 0 the operator's automatic bound.

    The bound is rows * ep_world_size * min(num_topk, experts of a rank). A2/A3 take the rows of the call for it
    (op tiling arch22, torch_api.txt: "num_tokens x ep_world_size x min(num_topk, num_experts_per_rank)"); 950 takes
    num_max_tokens_per_rank, which is equal on all ranks (op tiling arch35, operator_readme.txt maxRecvTokenNum).

    Args:
        rows: tokens of the call on each rank; None for num_max_tokens_per_rank.
    """
    if buffer.max_recv_token_num:
        return buffer.max_recv_token_num
    tokens = buffer.num_max_tokens_per_rank if rows is None or not profile.is_a2_a3 else rows
    return buffer.receive_bound(tokens)


def known_use_case(name: str) -> UseCase:
    """The use case of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return UseCase(name)
    except ValueError:
        raise ConfigError(f"use_case={name!r}; expected one of {', '.join(UseCase)}.") from None


def use_case_on(profile: Profile, name: str) -> UseCase:
    """The same, if the profile runs it.

    Raises:
        ConfigError: it does not, or there is no such use case.
    """
    use_case, cell = known_use_case(name), limits_of(profile).use_cases
    if use_case not in cell.value:
        legal = ", ".join(sorted(case.value for case in cell.value))
        raise ConfigError(
            f"use_case={name!r} with profile {profile.name!r}; expected one of {legal} ({cell.source}). "
            f"{name} runs on {', '.join(profiles_with(use_case))}."
        )
    return use_case
