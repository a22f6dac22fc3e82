"""One expert through the operator: its operands and rows, beside the same numbers in float32.

The operator gets a layer of this one expert, so the memory in use is one expert's: what it makes of a row does not
depend on how many other experts there are.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.checkpoint.explained import conversion_step, conversion_steps
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts
from vllm_megamoe.experts.convert import convert
from vllm_megamoe.experts.operands import KINDS, ExpertOperands, LayerOperands, from_operands
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.int8 import quantise_tokens, requantise
from vllm_megamoe.numerics.mx import Elem, mx_dequantise, mx_dequantise_bytes, mx_quantise
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.plan.activation import ActivationPlan
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

MARGIN, ROUNDINGS = 1.5, 2.0**-7
"""Errors of rows and activations add up at random: sound layers are off by 0.8 to 1.1 times their rms
(tests/cli/test_check.py), which gets a margin; a few bfloat16 roundings stand beside it."""

Weights = tuple[Tensor, Tensor]
"""w13 float32 [2I, H], gate rows first, and w2 float32 [H, I]."""


def weights_of(experts: Experts) -> Weights:
    """The numbers of one expert."""
    if isinstance(experts, DenseExperts):
        return experts.w13[0].float(), experts.w2[0].float()
    if isinstance(experts, IntExperts):
        w13, w2 = experts.w13[0].float(), experts.w2[0].float()
        return w13 * experts.w13_scale[0][:, None], w2 * experts.w2_scale[0][:, None]
    return (
        mx_dequantise_bytes(experts.w13[0], experts.w13_scale[0], experts.elem),
        mx_dequantise_bytes(experts.w2[0], experts.w2_scale[0], experts.elem),
    )


def finite(experts: Experts, where: str) -> Experts:
    """The experts; raises CheckpointError where unquantised weights are no numbers. Scales are seen when read."""
    if isinstance(experts, DenseExperts) and not math.isfinite(float(experts.w13.sum() + experts.w2.sum())):
        raise CheckpointError(
            f"{where}: its weights hold NaN or infinities; expected numbers. The checkpoint is damaged: copy it anew."
        )
    return experts


@dataclass(frozen=True, slots=True)
class Ran:
    """What one expert made of the rows, as sums of squares.

    Attributes:
        rows: [T], of the difference to the reference for each row.
        reference: [T], of the reference.
        explained: root of what is explained of the difference, over all rows.
        weights: of the difference between the operands' weights and the reference's.
        weights_reference: of the reference's weights.
        weights_explained: of the steps that the conversion may have moved each weight by.
        beyond_step: the largest distance of an operand's weight from the checkpoint's, in steps of its format; at most
            1 for a plain rounding, and 0 where the numbers are the same.
    """

    rows: Tensor
    reference: Tensor
    explained: float
    weights: float
    weights_reference: float
    weights_explained: float
    beyond_step: float

    @property
    def error(self) -> float:
        """Of the whole output."""
        return math.sqrt(float(self.rows.sum()) / max(float(self.reference.sum()), 1e-30))


@dataclass(frozen=True, slots=True)
class Way:
    """How experts run.

    Attributes:
        use_case: of their operands.
        hidden, intermediate_hidden: sizes of the operands, padding included.
        activation: what a call passes.
        exact: whether the operands must hold the checkpoint's own numbers.
    """

    use_case: UseCase
    hidden: int
    intermediate_hidden: int
    activation: ActivationPlan
    exact: bool


@dataclass(slots=True)
class Runner:
    """Runs the experts of a layer one after another; its buffer is made with the first one.

    Args:
        way: of all of them.
        x: rows bfloat16 [T, H].
    """

    way: Way
    x: Tensor
    _buffer: SymmBuffer | None = field(default=None, init=False)

    def run(self, experts: Experts, reference: Weights) -> Ran:
        """One expert of the checkpoint, and the weights that it is judged by."""
        way, own = self.way, weights_of(experts)
        operands = convert(
            experts,
            way.use_case,
            hidden=way.hidden,
            intermediate_hidden=way.intermediate_hidden,
            dtype=torch.bfloat16,
        )
        held = _unpadded(weights_of(_one(operands)), own)
        y = self._call(operands)
        through, expected = self._forward(held), self._forward(reference)
        off = y - expected
        kind = KINDS[way.use_case][0]
        steps = [conversion_step(w, kind) for w in own] if not way.exact else []
        from_weights = float((through - expected).norm())
        return Ran(
            rows=off.square().sum(dim=1),
            reference=expected.square().sum(dim=1),
            explained=from_weights + self._explained(held) * float(through.norm()),
            weights=sum(float((a - b).square().sum()) for a, b in zip(held, reference, strict=True)),
            weights_reference=sum(float(b.square().sum()) for b in reference),
            weights_explained=sum(float(step.square().sum()) for step in steps),
            beyond_step=conversion_steps(own, held, kind, exact=way.exact),
        )

    def close(self) -> None:
        """Give the buffer back."""
        if self._buffer is not None:
            self._buffer.destroy()

    def _call(self, operands: LayerOperands) -> Tensor:
        """float32 [T, H]."""
        rows, hidden = self.x.shape
        with settings(profile="none", backend="cpu"):
            if self._buffer is None:
                self._buffer = get_symm_buffer_for_mega_moe(None, 1, rows, 1, **operands.buffer_arguments())
            y, _ = mega_moe(
                pad(self.x, (0, operands.hidden - hidden)),
                torch.zeros(rows, 1, dtype=torch.int32),
                torch.ones(rows, 1),
                sym_buffer=self._buffer,
                **operands.arguments(),
                **self._activation(),
            )
        return y[:, :hidden].float()

    def _activation(self) -> dict[str, Any]:
        activation = self.way.activation
        return {
            "activation": activation.name,
            "activation_clamp": activation.clamp,
            "activation_params": dict(activation.params) or None,
        }

    def _inner(self, weights: Weights) -> Tensor:
        """What the activation gives, float32 [T, I]."""
        activation = Activation.of(**self._activation())
        gate, up = (self.x.float() @ weights[0].t()).chunk(2, dim=1)
        return activation.apply(gate, up)

    def _forward(self, weights: Weights) -> Tensor:
        """The expert without a rounding, float32 [T, H]."""
        return self._inner(weights) @ weights[1].t()

    def _explained(self, weights: Weights) -> float:
        """The part of an output's rms that quantised rows and activations explain.

        A row's error reaches the output through gate and up, the activation's once.
        """
        first, second = _loss(self.x.float(), self.way.use_case, True), _loss(self._inner(weights), self.way.use_case)
        return MARGIN * math.sqrt(2 * first**2 + second**2) + ROUNDINGS


def _loss(rows: Tensor, use_case: UseCase, dispatched: bool = False) -> float:
    """rms over rms of what the operator's own quantiser takes from rows."""
    facts = USE_CASES[use_case]
    if facts.family == "dense":
        return 0.0
    if facts.family == "int":
        codes, scale = quantise_tokens(rows) if dispatched else requantise(rows)
        back = codes.float() * scale[:, None]
    else:
        # The second GEMM takes FP8 also beside FP4 weights.
        elem: Elem = "e2m1" if dispatched and use_case is UseCase.A4W4_FP else "e4m3"
        back = mx_dequantise(*mx_quantise(rows, elem), elem)
    return float((back - rows).norm()) / max(float(rows.norm()), 1e-30)


def _one(operands: LayerOperands) -> Experts:
    """The operands of a layer of one expert, as canonical experts again."""
    columns: dict[str, Any] = {each.name: getattr(operands, each.name) for each in fields(ExpertOperands)}
    first: dict[str, Any] = {name: None if column is None else column[0] for name, column in columns.items()}
    return from_operands([ExpertOperands(**first)], operands.use_case)


def _unpadded(weights: Weights, like: Weights) -> Weights:
    """The rows and columns that are not padding."""
    (rows, hidden), width = like[0].shape, like[1].shape[1]
    halves = weights[0].view(2, -1, weights[0].shape[1])[:, : rows // 2, :hidden]
    return halves.reshape(rows, hidden), weights[1][:hidden, :width]
