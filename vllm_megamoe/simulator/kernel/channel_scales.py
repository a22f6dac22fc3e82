"""Channel scales of A2 and A3: the tiling looks at their dimensions, not at how many there are (op tiling arch22)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.simulator.arguments import DtypeArgument
from vllm_megamoe.simulator.describe import element_of
from vllm_megamoe.simulator.kernel.router_weights import BEHIND


def read_scales(scales: Sequence[Tensor], weights: Sequence[Tensor], declared: DtypeArgument) -> list[Tensor]:
    """One word per output channel: those that are too many are not read, those that lack come from behind the tensor.

    Args:
        scales: 8-byte words [n].
        weights: of the same experts, [K, N] in their carrier.
        declared: element type of the weights.
    """
    if len(scales) != len(weights):
        return list(scales)
    return [_first_words(scale, _outputs(weight, declared)) for scale, weight in zip(scales, weights, strict=True)]


def _outputs(weight: Tensor, declared: DtypeArgument) -> int:
    packed = 2 * weight.element_size() if element_of(weight, declared) == AclDtype.INT4.name else 1
    return int(weight.shape[-1]) * packed


def _first_words(scale: Tensor, wanted: int) -> Tensor:
    if scale.dim() != 1 or scale.dtype.itemsize != 8 or len(scale) == wanted:
        return scale
    words = scale.contiguous().view(torch.int64)
    behind = torch.full((max(wanted - len(scale), 0) * 8,), BEHIND, dtype=torch.uint8).view(torch.int64)
    return torch.cat([words[:wanted], behind]).view(scale.dtype)
