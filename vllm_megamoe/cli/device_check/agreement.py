"""One call of each use case through the adapter, beside the twin's with the device's own answers, token by token."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from vllm_megamoe.cli.device_check.layer import make_layer
from vllm_megamoe.cli.device_check.questions import cut_scales, dropped_bits, numerics_of
from vllm_megamoe.profiles.use_cases import UseCase

BOUND = 2.0**-6
"""Most that a token's row may differ by, relative to the row, both as norms.

Results are rounded to bfloat16 up to four times on the way (docs/numerics.md: R1, R2, R3, R17 or R10, R11, R13, R17),
each by 2^-9 at most; as much again where a sum in another order tips a number over the edge of a quantisation step.
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """One rank's rows of one use case.

    Attributes:
        equal: bit for bit.
        counts_agree: whether expert_token_nums are the twin's.
        token: the row that differs most.
        error: of that row, relative to it.
    """

    equal: bool
    counts_agree: bool
    token: int
    error: float


def compare(profile: str, use_case: UseCase, answers: Mapping[str, str]) -> Compared:
    """Run on both ranks together."""
    layer = make_layer(profile, use_case, seed=1)
    y, counts = layer.through_adapter()
    want, expected = cut_scales(layer, dropped_bits(answers)).on_twin(numerics_of(answers))
    token, error = worst_token(y, want)
    return Compared(bool(y.equal(want)), bool(counts.equal(expected)), token, error)


def worst_token(y: Tensor, want: Tensor) -> tuple[int, float]:
    """Row and relative error of the row [H] of [T, H] that differs most; Inf where the device's is not finite."""
    errors = (y.double() - want.double()).norm(dim=1) / want.double().norm(dim=1).clamp_min(1e-300)
    errors = errors.nan_to_num(nan=float("inf"))
    token = int(errors.argmax())
    return token, float(errors[token])
