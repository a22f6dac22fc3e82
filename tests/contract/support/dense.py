"""The dense layer, from the formula, in float64: what every product must come close to."""

import torch
from contract.support.cases import TOPK, Case
from contract.support.weights import Projection, gate, projections
from torch import Tensor
from torch.nn.functional import silu


def mlp(x: Tensor, weights: dict[str, Projection]) -> Tensor:
    """One expert: down(silu(gate x) * up x), rows [T, H]."""
    gate, up, down = (weights[name].values for name in ("gate", "up", "down"))
    return (silu(x @ gate.t()) * (x @ up.t())) @ down.t()


def dense(case: Case, rows: Tensor) -> Tensor:
    """The layer's output for rows [T, H]: softmax over all experts, the best of them, weights that add up to one.

    The factor of a case multiplies the routed part alone.
    """
    x, homes = rows.double(), case.homes
    scores = (x @ gate().double().t()).softmax(-1).topk(TOPK)
    share = scores.values / scores.values.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for expert in scores.indices.unique().tolist():
        token, place = (scores.indices == expert).nonzero(as_tuple=True)
        y[token] += share[token, place, None] * mlp(x[token], projections(case, *homes[expert]))
    y *= case.scaling
    return y + mlp(x, projections(case, *homes[-1])) if case.shared else y
