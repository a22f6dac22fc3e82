"""The MoE block of each family as a formula in float64, written from the models' own descriptions.

Nothing of the package, of vLLM or of the operator's twin takes part. Sources: the papers and model cards of the
families; the activations as torch code in the models' published modelling files.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Activation = Callable[[Tensor, Tensor], Tensor]
"""From gate and up rows to the activated row."""


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def swiglu(limit: float = math.inf) -> Activation:
    """DeepSeek-V4: the gate is held below the limit, the up value on both sides, then silu(gate) * up."""
    return lambda gate, up: silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def swiglu_step(limit: float) -> Activation:
    """Step-3.5: silu first, its result held below the limit; the up value on both sides."""
    return lambda gate, up: silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


def swiglu_oai(limit: float, alpha: float, beta: float) -> Activation:
    """MiniMax-M3, as gpt-oss: gate * sigmoid(alpha * gate) * (up + beta) of held values."""

    def activate(gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate / (1 + torch.exp(-alpha * gate)) * (up + beta)

    return activate


def situ(beta: float, linear_beta: float | None) -> Activation:
    """Kimi-K3: a gate bent by tanh, and an up value bent by a wider one."""

    def activate(gate: Tensor, up: Tensor) -> Tensor:
        bent = up if linear_beta is None else linear_beta * torch.tanh(up / linear_beta)
        return beta * torch.tanh(gate / beta) / (1 + torch.exp(-gate)) * bent

    return activate


@dataclass(frozen=True)
class Weights:
    """Of one layer: routed experts, and the shared MLP where the block has one.

    Attributes:
        w13: [E, 2I, H], gate rows first.
        w2: [E, H, I].
        shared_w13, shared_w2: [2S, H], [H, S].
    """

    w13: Tensor
    w2: Tensor
    shared_w13: Tensor
    shared_w2: Tensor


def mlp(x: Tensor, w13: Tensor, w2: Tensor, activate: Activation) -> Tensor:
    """x [H] -> [H]."""
    gate, up = (w13.double() @ x).chunk(2)
    return w2.double() @ activate(gate, up)


def block(
    x: Tensor, ids: Tensor, router: Tensor, weights: Weights, routed: Activation, shared: Activation | None
) -> Tensor:
    """The layer: experts weighted by the router (its scaling factor included), and the shared MLP unweighted.

    Args:
        x: [T, H]; ids, router: [T, K].
        shared: activation of the shared MLP, None for a layer whose shared MLP is not part of this sum.
    """
    rows = []
    for t, row in enumerate(x.double()):
        y = torch.zeros_like(row)
        for e, p in zip(ids[t].tolist(), router[t].tolist(), strict=True):
            y += p * mlp(row, weights.w13[e], weights.w2[e], routed)
        if shared is not None:
            y += mlp(row, weights.shared_w13, weights.shared_w2, shared)
        rows.append(y)
    return torch.stack(rows)
