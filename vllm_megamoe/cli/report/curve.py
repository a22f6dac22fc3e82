"""Memory and wire bytes over the legal EP sizes."""

from vllm_megamoe.cli.model.facts import Model
from vllm_megamoe.cli.report.make import at_ep_size
from vllm_megamoe.cli.report.schema import CurvePoint
from vllm_megamoe.cli.report.sizes import memory_of, wire_of
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.plan import draft_plan


def make_curve(model: Model, plan: Plan, sizes: tuple[int, ...]) -> tuple[CurvePoint, ...]:
    """One point for each size at which something can be planned; options and tokens stay."""
    points = []
    for size in sizes:
        there, _ = draft_plan(at_ep_size(plan.engine, size), model.layers, plan.options)
        memory, wire = memory_of(there), wire_of(there)
        if memory is not None and wire is not None:
            points.append(CurvePoint(ep_size=size, memory=memory, wire=wire))
    return tuple(points)
