"""One call: what came, read and checked against the buffer as it is now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype, AclFormat
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.minifloat import Elem
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.weights import RawWeights, Weights

Lists = Sequence[Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class RawCall:
    """The custom op's arguments, grouped but not looked at.

    Attributes:
        l1, l2, shared_l1, shared_l2: the four weights; a shared one without tensors is absent.
        shared_out: `shared_expert_quant_out_dtype`.
        activation, clamp, params: of the activation.
        The others as in `mega_moe`.
    """

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    mask: Tensor | None
    scales: Tensor | None
    l1: RawWeights
    l2: RawWeights
    shared_l1: RawWeights
    shared_l2: RawWeights
    shared_out: AclDtype | None
    activation: str
    clamp: float | None
    params: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed or shared experts of a call.

    Attributes:
        l1, l2: their weights.
        rows: MX format of the rows that enter the first GEMM, None outside of the MX family.
    """

    l1: Weights
    l2: Weights
    rows: Elem | None


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call.

    Attributes:
        buffer, config: configuration; `config` is the open `settings(...)` block's, else the buffer's.
        raw: tensors of the call.
        routed, shared: experts; `shared` is None when there are none.
        activation: with every parameter.
        sent: bool [T, K], the pairs that are dispatched.
        hidden: H in elements.
    """

    buffer: SymmBuffer
    config: Settings
    raw: RawCall
    routed: Experts
    shared: Experts | None
    activation: Activation
    sent: Tensor
    hidden: int

    @property
    def is_float32(self) -> bool:
        """The twin-only mode without bf16 roundings."""
        return self.raw.x.dtype == torch.float32


def group_arguments(
    lists: tuple[Lists, Lists], formats: Sequence[int], shapes: Sequence[int], types: Sequence[AclDtype | None]
) -> tuple[RawWeights, RawWeights, RawWeights, RawWeights]:
    """The four weights out of the custom op's flat arguments (see `mega_moe_op`)."""
    (l1, l2, sf1, sf2, bias1, bias2), (shared1, shared2, shared_sf1, shared_sf2, *_) = lists
    parts = [
        ("l1_weights", l1, sf1, bias1, types[0]),
        ("l2_weights", l2, sf2, bias2, types[1]),
        ("shared_l1_weights", shared1, shared_sf1, (), types[2]),
        ("shared_l2_weights", shared2, shared_sf2, (), types[3]),
    ]
    formats_left, shapes_left = iter(formats), iter(shapes)
    made = []
    for name, tensors, scales, biases, declared in parts:
        dims = [tuple(next(shapes_left) for _ in range(next(shapes_left))) for _ in tensors]
        kinds = [AclFormat(next(formats_left)) for _ in tensors]
        made.append(RawWeights(name, tensors, dims, kinds, scales, biases, declared))
    return made[0], made[1], made[2], made[3]
