"""What a whole model's step makes the fullest rank do: read weights and cache, multiply, and send.

Every count is the least that the step needs; `plan.bounds` turns it into time.
"""

from collections import defaultdict

from vllm_megamoe.plan.bounds import Step, Work, all_reduce_bytes, attended, layers_work, linear_element
from vllm_megamoe.plan.fit import Checkpoint, Fit
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.whole.on_rank import kind_of
from vllm_megamoe.profiles.devices import Element


def step_work(checkpoint: Checkpoint, plan: Plan, fit: Fit, step: Step) -> Work:
    """The work of a step; all pipeline stages together, since a step goes through all of them.

    Args:
        plan: of all layers, or of one of each kind.
        fit: what the rank holds.
    """
    engine, whole = plan.engine, checkpoint.whole
    tensor, ranks = engine.tensor_parallel, engine.ep_size
    tokens = step.tokens * engine.data_parallel
    planned = {kind_of(layer.facts): layer for layer in plan.layers}
    operations: dict[Element, float] = defaultdict(float)
    experts: dict[object, Work] = {}
    weights = wire = 0.0
    for layer in checkpoint.layers:
        kind = kind_of(layer)
        if kind not in planned:
            continue
        if kind not in experts:
            experts[kind] = layers_work(planned[kind], step, ranks, tokens, step.tokens / tensor)
        work = experts[kind]
        weights += work.weights
        wire += work.wire
        for element, size in work.operations.items():
            operations[element] += size
    product, cache = plan.profile.product, 0.0
    for block in whole.blocks:
        for tensors in block.tensors:
            elements = tensors.on_a_rank(tensor)
            bits = checkpoint.bits(f"model.layers.{block.number}.{tensors.linear}") if tensors.linear else 16.0
            operations[linear_element(bits, product)] += 2.0 * elements * step.tokens
        for each in block.caches:
            cut = min(tensor, max(each.heads, each.state_heads, tensor if each.score else 1))
            operations["bf16"] += 2.0 * step.tokens * each.score * attended(each, step.seen) / cut
            read = each.bytes_on_a_rank(step.cached, tensor, fit.serving.cache_bits)
            kept = each.entries(step.cached)
            if kept and each.elements:
                # A row reads no more entries than it attends to, and one row a sequence is read here.
                read *= min(1.0, attended(each, step.cached) / kept)
            cache += step.sequences * read
        width = 4 if engine.dtype == "float32" else 2
        wire += all_reduce_bytes(tensor, step.tokens * whole.hidden * width)
    for tensors in whole.after:
        operations["bf16"] += 2.0 * tensors.on_a_rank(tensor) * step.sequences
    stages = engine.pipeline_parallel
    return Work(weights + (fit.weights.other - fit.weights.table) * stages, cache, dict(operations), wire)
