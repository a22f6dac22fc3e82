"""The dense layer, from the formula, in float64: what every product must come close to."""

import torch
from contract.support.cases import TOPK, Case
from torch import Tensor
from torch.nn.functional import silu


def mlp(x: Tensor, weights: dict[str, Tensor], home: str) -> Tensor:
    """One expert: down(silu(gate x) * up x), rows [T, H]."""
    gate, up, down = (weights[f"{home}.{name}_proj.weight"].double() for name in ("gate", "up", "down"))
    return (silu(x @ gate.t()) * (x @ up.t())) @ down.t()


def dense(case: Case, rows: Tensor) -> Tensor:
    """The layer's output for rows [T, H]: softmax over all experts, the best of them, weights that add up to one.

    The factor of a case multiplies the routed part alone.
    """
    weights, x = dict(case.checkpoint()), rows.double()
    scores = (x @ weights["gate.weight"].double().t()).softmax(-1).topk(TOPK)
    share = scores.values / scores.values.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for expert in scores.indices.unique().tolist():
        token, place = (scores.indices == expert).nonzero(as_tuple=True)
        y[token] += share[token, place, None] * mlp(x[token], weights, f"experts.{expert}")
    y *= case.scaling
    return y + mlp(x, weights, "shared_experts") if case.shared else y
