"""Plan, method and twin together under each product's rules: padded, cut, masked, stacked, fused; two ranks.

The plan decides from the layer's facts alone, the twin rejects what the product would, and the oracle knows of none of
this: it computes the unpadded layer.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from layer.layers import facts_of, padded_state, rows_of
from ops.calls import Got, as_got
from ops.compare import compare_rank
from oracle.case import Case
from oracle.make import Shape, make_case
from oracle.operator import expected

from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer
from vllm_megamoe.testing.ranks import World

# Qwen3-30B-A3B's width 768 is no legal one on A2/A3.
NARROW = Shape(tokens=(9, 4), experts=4, hidden=1024, intermediate=768, topk=2)
MTE = Shape(tokens=(9, 4), experts=4, hidden=1024, intermediate=320, topk=3)
FIRST_950 = Shape(tokens=(9, 4), experts=8, hidden=4096, intermediate=512, topk=6)


@dataclass(frozen=True)
class Product:
    """A profile, the layer that is served under it, and what its plan must have come to."""

    profile: str
    use_case: str
    shape: Shape
    width: int
    pad: str
    stacked: bool = False
    shared: int = 0

    def __str__(self) -> str:
        return f"{self.profile} {self.use_case}{' fused' if self.shared else ''}"


PRODUCTS = [
    Product("a2@9.1", "a8w8-int", NARROW, 1024, "dp_max"),
    Product("a3@9.1", "a16w16", NARROW, 1024, "dp_max"),
    Product("a3@9.2", "a16w16", NARROW, 1024, "dp_max"),
    Product("a3@9.2", "a8w8-int", NARROW, 1024, "dp_max"),
    Product("950@9.2", "a8w8-fp", MTE, 384, "own"),
    Product("950@9.2", "a8w4-fp", MTE, 384, "own", shared=2),
    Product("950@9.2", "a4w4-fp", MTE, 384, "own"),
    pytest.param(Product("950@9.1", "a8w8-fp", FIRST_950, 512, "num_max", stacked=True), marks=pytest.mark.full),
]


def run_step(case: Case, r: int, plan: LayerPlan) -> tuple[Got, int, int]:
    """One step on rank r, its calls, and the bytes of the operands; vLLM would have exchanged 9 rows."""
    import torch

    state = padded_state(case, r, plan, largest=9)
    x, ids, weights = rows_of(case, r)
    y = state.run(x, ids, weights)
    held = state.operands.nbytes + (state.shared.nbytes if state.shared else 0)
    return as_got(y, state.counts.to(torch.int32), ids), state.calls, held


def plan_for(case: Case, product: Product, **options: Any) -> LayerPlan:
    engine = EngineFacts("bfloat16", data_parallel=2, expert_parallel=True, max_num_batched_tokens=9)
    asked = {"profile": product.profile, "use_case": product.use_case, "requant": "allow", **options}
    return plan_layer(engine, facts_of(case), Options(**asked))


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_a_step_is_right_under_the_products_rules(product: Product, two_ranks: World) -> None:
    case = make_case(product.use_case, product.shape, shared=product.shared)
    plan = plan_for(case, product)
    assert (plan.padding.intermediate_hidden, plan.capacity.pad, plan.stacked, plan.shared.pieces) == (
        product.width,
        product.pad,
        product.stacked,
        product.shared,
    )
    # The plan's chunk would take all nine rows; a smaller one makes three calls of the same rows.
    buffer = replace(plan.buffer, num_max_tokens_per_rank=3)
    for chunk, calls in ((9, 1), (3, 3)):
        cut = replace(plan, capacity=replace(plan.capacity, chunk=chunk), buffer=buffer if chunk == 3 else plan.buffer)
        steps = two_ranks.run(run_step, [(case, r, cut) for r in range(2)], limit_s=120)
        for r, want in enumerate(expected(case)):
            compare_rank(r, steps[r][0], want)
        assert [(made, held) for _, made, held in steps] == [(calls, plan.weight_bytes)] * 2
