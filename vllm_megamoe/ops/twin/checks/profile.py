"""The one place where a product's limits enter."""

from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.refusal import refusal


def check_profile(config: Settings) -> None:
    """Refuse a profile whose limits this version does not know, rather than ignore it."""
    if config.profile != "none":
        raise refusal(
            "settings(profile=...)",
            repr(config.profile),
            "only 'none': no other has rules in this version",
            "vllm_megamoe.ops.twin.checks.profile",
            "Take profile='none', or unset VLLM_MEGAMOE_PROFILE.",
        )
