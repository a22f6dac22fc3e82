"""Router weights as the kernel reads them."""

import torch
from torch import Tensor

from vllm_megamoe.profiles.profile import Profile

BEHIND = 0x7F
"""Byte that stands for the memory behind a tensor, which is anything on a device: float32 of about 3.4e38."""


def read_router_weights(weights: Tensor, profile: Profile) -> Tensor:
    """[T, K] of any dtype -> float32 [T, K].

    A2/A3 read the memory as float32 whatever is in it, and past its end where elements are smaller (op kernel arch22,
    KernelMoeTokenUnpermute with float weights); 950 converts.
    """
    if not profile.is_a2_a3:
        return weights.float()
    held = weights.contiguous().view(torch.uint8).flatten()
    wanted = weights.numel() * 4
    behind = torch.full((max(wanted - len(held), 0),), BEHIND, dtype=torch.uint8)
    return torch.cat([held[:wanted], behind]).view(torch.float32).view(weights.shape)
