"""Shared experts: every local token, no dispatch, no router weight (operator_readme.txt, shared experts)."""

from torch import Tensor

from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.families import family_of


def shared_rows(call: Call) -> list[Tensor]:
    """Rows [T, H] of each shared expert of this rank, in index order."""
    if call.shared is None:
        return []
    family = family_of(call, call.shared)
    records = family.pack(call.raw.x, call.raw.scales)
    return [family.expert(expert, records, None) for expert in range(call.shared.l1.count)]
