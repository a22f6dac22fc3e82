"""Bytes that a rank's experts take as operands: weights, scales, biases, padding of blocks."""

from dataclasses import dataclass

from vllm_megamoe.profiles.sizes.names import known_use_case
from vllm_megamoe.profiles.sizes.units import ceil_div, round_up
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase, UseCaseFacts

_ND, _NZ, _NZ_C0_32 = 2, 29, 51
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


def _matrix(facts: UseCaseFacts, outputs: int, inputs: int, fmt: int) -> int:
    """Bytes of one matrix; integers and bf16 lie [inputs, outputs], MX codes [outputs, inputs]."""
    rows, columns = (outputs, inputs) if facts.family == "mx" else (inputs, outputs)
    row_bytes = columns * facts.weight_bits // 8
    if fmt == _ND:
        return rows * row_bytes
    block = 16 if fmt == _NZ_C0_32 else 32
    return round_up(rows, _BLOCK_ROWS) * round_up(row_bytes, block)
