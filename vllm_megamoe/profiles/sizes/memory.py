"""Memory of a rank beside the window: its experts as operands, and the workspace of a call.

Operands are weights, scales and biases, with the padding of storage blocks. The workspace has a formula for each
family of products; this is the door to both.
"""

from dataclasses import dataclass

from vllm_megamoe.acl import NZ_BLOCK_BYTES, AclFormat, block_columns
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes import a2_a3, workspace_950
from vllm_megamoe.profiles.sizes.common import ceil_div, known_use_case, round_up, use_case_on
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase, UseCaseFacts

_BLOCK_ROWS = 16


@dataclass(frozen=True, slots=True)
class ExpertBytes:
    """One expert.

    Attributes:
        weights: both matrices, in blocks where the format has them.
        scales: of both.
        biases: of both; only INT4 has them.
    """

    weights: int
    scales: int
    biases: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.scales + self.biases


def weight_bytes(use_case: str, experts: int, hidden: int, intermediate_hidden: int) -> int:
    """Bytes of the operands of `experts` experts, without what an allocator rounds up.

    Args:
        use_case: value of UseCase.
        experts: on the rank; for a whole model multiply by its layers.
        hidden, intermediate_hidden: H and I, after padding where the plan pads.

    Raises:
        ConfigError: no such use case.
    """
    return experts * expert_bytes(known_use_case(use_case), hidden, intermediate_hidden).total


def expert_bytes(use_case: UseCase, hidden: int, intermediate_hidden: int) -> ExpertBytes:
    """One expert's operands (layouts: operator_readme.txt, scenario tables and MXFP constraints)."""
    facts = USE_CASES[use_case]
    outputs = 2 * intermediate_hidden, hidden
    inputs = hidden, intermediate_hidden
    sizes = zip(outputs, inputs, (facts.format1, facts.format2), strict=True)
    weights = sum(_matrix(facts, out, into, fmt) for out, into, fmt in sizes)
    if facts.family == "mx":
        # A byte per 32 inputs, in pairs.
        scales = sum(out * ceil_div(into, 64) * 2 for out, into in zip(outputs, inputs, strict=True))
    else:
        scales = 8 * sum(outputs) if facts.has_scales else 0
    return ExpertBytes(weights, scales, 4 * sum(outputs) if facts.has_bias else 0)


def _matrix(facts: UseCaseFacts, outputs: int, inputs: int, fmt: AclFormat) -> int:
    """Bytes of one matrix; integers and bf16 lie [inputs, outputs], MX codes [outputs, inputs]."""
    rows, columns = (outputs, inputs) if facts.family == "mx" else (inputs, outputs)
    row_bytes = columns * facts.weight_bits // 8
    if fmt is AclFormat.ND:
        return rows * row_bytes
    block = block_columns(fmt, 1) * facts.weight_bits // 8 if fmt is AclFormat.FRACTAL_NZ_C0_32 else NZ_BLOCK_BYTES
    return round_up(rows, _BLOCK_ROWS) * round_up(row_bytes, block)


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
        return a2_a3.workspace_bytes(profile, buffer, known, intermediate_hidden, tokens)
    width = intermediate_hidden if shared_intermediate_hidden is None else shared_intermediate_hidden
    call = workspace_950.make_call(profile, buffer, known, intermediate_hidden, tokens, (shared_experts, width))
    return workspace_950.workspace_bytes(call)
