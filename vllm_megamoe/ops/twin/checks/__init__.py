"""What a buffer and a call must be. Profile `none` refuses what has no meaning; products add their limits."""

from vllm_megamoe.ops.twin.checks.buffer import check_buffer
from vllm_megamoe.ops.twin.checks.profile import check_meeting
from vllm_megamoe.ops.twin.checks.read_call import read_call

__all__ = ["check_buffer", "check_meeting", "read_call"]
