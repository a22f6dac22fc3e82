"""The plan's activation in the call: name, clamp and parameters, never left to a default (B41, B43, B44)."""

import math
from typing import Any

import pytest
import torch
from layer.layers import ALONE, convert_routed, plan_of, rows_of
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.layer.buffers import open_handle
from vllm_megamoe.layer.state import LayerState, constant_arguments
from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan

EXPERTS, TOPK, HIDDEN, WIDTH = 4, 3, 96, 64
CASE = make_case("a16w16", Shape(tokens=(11,)), grid=False)

# facts of the model -> activation, activation_clamp, activation_params of the call
CALLS: list[tuple[ActivationFacts, tuple[str, float | None, dict[str, float] | None]]] = [
    (ActivationFacts("silu"), ("swiglu", None, None)),
    (ActivationFacts("silu", limit=10.0), ("swiglu", 10.0, None)),
    (ActivationFacts("silu", limit=0.0), ("swiglu", None, None)),
    (ActivationFacts("silu", limit=math.inf), ("swiglu", None, None)),
    (ActivationFacts("swiglustep", limit=7.0), ("swiglustep", 7.0, None)),
    (ActivationFacts("swigluoai", limit=7.0), ("swigluoai", 7.0, {"alpha": 1.702, "beta": 1.0})),
    (
        ActivationFacts("swigluoai_uninterleave", 7.0, alpha=1.5, beta=0.0),
        ("swigluoai", 7.0, {"alpha": 1.5, "beta": 0.0}),
    ),
    (ActivationFacts("situ", beta=4.0, linear_beta=25.0), ("situglu", None, {"beta": 4.0, "linear_beta": 25.0})),
    (ActivationFacts("situ", beta=4.0), ("situglu", None, {"beta": 4.0})),
]


def plan(facts: ActivationFacts, **changes: Any) -> LayerPlan:
    return plan_of(CASE, facts=MoeFacts("layer", EXPERTS, TOPK, HIDDEN, WIDTH, activation=facts, **changes))


@pytest.mark.parametrize(("facts", "call"), CALLS, ids=lambda v: str(v) if isinstance(v, ActivationFacts) else "")
def test_what_the_call_passes(facts: ActivationFacts, call: tuple[Any, ...]) -> None:
    w13, w2 = torch.zeros(4, 128, 96, dtype=torch.bfloat16), torch.zeros(4, 96, 64, dtype=torch.bfloat16)
    planned = plan(facts)
    arguments = constant_arguments(planned, convert_routed(w13, w2, planned), None)
    assert tuple(arguments[f"activation{part}"] for part in ("", "_clamp", "_params")) == call


def formula(facts: ActivationFacts, gate: Tensor, up: Tensor) -> Tensor:
    """vLLM's MoEActivation (vllm/model_executor/layers/fused_moe/activation.py), in float64."""
    limit = math.inf if facts.limit is None else facts.limit
    if facts.name == "swiglustep":
        return (gate * gate.sigmoid()).clamp(max=limit) * up.clamp(-limit, limit)
    if facts.name == "situ":
        beta, linear = facts.beta or 1.0, facts.linear_beta
        up = up if linear is None else linear * (up / linear).tanh()
        return beta * (gate / beta).tanh() * gate.sigmoid() * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if facts.name == "silu":
        return gate * gate.sigmoid() * up
    return gate * (1.702 * gate).sigmoid() * (up + 1.0)


VALUES = [
    ActivationFacts("silu", limit=0.75),
    ActivationFacts("swiglustep", limit=0.75),
    ActivationFacts("swigluoai", limit=0.75),
    ActivationFacts("situ", beta=0.5, linear_beta=0.25),
]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("facts", VALUES, ids=lambda f: f.name)
def test_a_layer_computes_its_formula(facts: ActivationFacts, interleaved: bool) -> None:
    """Weights as vLLM's loader leaves them, alternating rows for gpt-oss, against the formula in float64.

    bf16 rounds the gate, the up value, the activation and each expert's row by at most 2^-9 of their size, at random;
    a row's error stays below 8 such roundings of its length: 2^-6.
    """
    g = torch.Generator().manual_seed(2)
    w13 = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=g).mul(0.15).to(torch.bfloat16)
    w2 = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=g).mul(0.15).to(torch.bfloat16)
    x, ids, weights = rows_of(CASE, 0)
    want = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        for k in range(TOPK):
            rows = w13[ids[t, k]].double() @ x[t].double()
            gate, up = (rows[0::2], rows[1::2]) if interleaved else rows.chunk(2)
            want[t] += weights[t, k].double() * (w2[ids[t, k]].double() @ formula(facts, gate, up))
    planned = plan(facts, gate_up_interleaved=interleaved)
    operands = convert_routed(w13.clone(), w2.clone(), planned)
    state = LayerState("layer", planned, ALONE, operands, open_handle("layer", planned, ALONE))
    off = (state.run(x, ids, weights).double() - want).norm(dim=1) / want.norm(dim=1)
    assert float(off.max()) < 2**-6
