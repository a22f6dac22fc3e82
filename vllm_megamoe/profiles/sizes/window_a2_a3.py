"""What A2 and A3 windows have in common: the table of token counts, the reserve, the record of a dispatched row."""

from vllm_megamoe.profiles.sizes.units import MIB, round_up

# The table is sized for 128 experts on every rank, whatever the model has (op tiling arch22, MAX_EXPERT_PER_RANK).
EXPERTS_PER_RANK = 128
RESERVE = 10 * MIB


def token_counts(ep_world_size: int) -> int:
    """Bytes of `offsetTokenPerExpert`: an int32 per rank and global expert, the row rounded up to 128 entries."""
    return ep_world_size * round_up(ep_world_size * EXPERTS_PER_RANK + 1, 128) * 4


def record_space(hidden: int, quantised: bool) -> int:
    """Bytes that the window keeps for a dispatched row: bf16, or int8 with 512 bytes behind it for the scale."""
    return hidden + 512 if quantised else 2 * hidden
