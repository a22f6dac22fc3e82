"""What a conversion of experts loses: measured figures, the only place where they stand.

A weight's loss is the rms of the error over the rms of the weights, in percent, of Gaussian weights rounded to BF16,
with this package's own quantisers; K from 128 to 7168 and the weights' size anywhere between two powers of two, which
decide between the ends of a range. Heavier tails lose more where a scale serves a whole channel (INT8, INT4). The error
is against the checkpoint's own numbers, whatever its first quantisation lost before. tests/profiles/test_losses.py
measures every figure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_megamoe.profiles.use_cases import UseCase


@dataclass(frozen=True, slots=True)
class Loss:
    """A range in percent; `least` 0 where some weights convert exactly."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g} %" if self.least else f"at most {self.most:g} %"


def told(loss: str, use_case: UseCase) -> str:
    """What a lossy conversion costs, and of what; `loss` is that of the weights."""
    return f"{loss} of the weights' rms, a layer's output {OUTPUT[use_case]}; of Gaussian weights"


_A16W16, _INT8, _FP8 = UseCase.A16W16, UseCase.A8W8_INT, UseCase.A8W8_FP

LOSSES: Mapping[str, Mapping[UseCase, Loss]] = {
    "bf16": {
        _INT8: Loss(0.64, 0.91),
        _FP8: Loss(2.8, 3.2),
        UseCase.A8W4_INT: Loss(11.6, 16.6),
        UseCase.A8W4_FP: Loss(11.2, 11.9),
        UseCase.A4W4_FP: Loss(11.2, 11.9),
    },
    "int8": {_A16W16: Loss(0.15, 0.18), _FP8: Loss(2.8, 3.2)},
    "int4": {_A16W16: Loss(0.14, 0.19), _FP8: Loss(2.6, 3.6)},
    "free scales": {_A16W16: Loss(0, 0.22), _INT8: Loss(0, 0.92), _FP8: Loss(1.7, 4.4)},
    "two stages": {_A16W16: Loss(0.15, 0.18), _INT8: Loss(0.56, 0.83), _FP8: Loss(2.7, 3.4)},
    "blocks of powers of two": {_INT8: Loss(0.64, 0.93)},
    "mxfp8": {_INT8: Loss(0.64, 0.93)},
    "mxfp4": {_INT8: Loss(0.62, 1.0)},
}
"""Kind of the stored weights -> use case -> loss; what is not here is exact, or is not known.

`int4`: per channel, with zero points too. `free scales`: INT4 and INT8 in groups, FP8 per channel, tensor or block,
NVFP4: any float32 scale beside the codes. `two stages`: INT4 in groups inside INT8 per channel (msModelSlim); where
the groups' numbers are whole, as the tool writes them, the codes become INT8 ones without a loss.
"""

OUTPUT: Mapping[UseCase, Loss] = {
    UseCase.A16W16: Loss(0.37, 0.52),
    UseCase.A8W8_INT: Loss(1.9, 3.1),
    UseCase.A8W4_INT: Loss(21, 27),
    UseCase.A8W8_FP: Loss(7.2, 8.7),
    UseCase.A8W4_FP: Loss(20, 22),
    UseCase.A4W4_FP: Loss(25, 28),
}
"""Error of a layer's output over its rms against exact arithmetic with the checkpoint's own numbers, in percent.

Of every lossy conversion of LOSSES, and of A16W16 from BF16. Random experts and tokens, SwiGLU, H and I from 256 to
2048; quantised tokens and activations are in it. A model's own weights and their order of size decide what it costs in
quality; nobody has measured that here.
"""
