"""Numbers of ranks as tensor parallel x data parallel: which splits are legal, which fit, which is the smallest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vllm_megamoe.environment import DEFAULT_MB
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.fit import Checkpoint, Fit, Serving, fit
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_of, violations_of
from vllm_megamoe.plan.whole.on_rank import kind_of


def hccl_of(plan: Plan) -> int | None:
    """The HCCL_BUFFSIZE that the largest layer needs, in MB; None where none needs it."""
    return max((layer.hccl_buffsize_mb for layer in plan.layers if layer.hccl_buffsize_mb is not None), default=None)


def one_of_each(layers: Sequence[MoeFacts]) -> tuple[MoeFacts, ...]:
    """A layer of each kind, the first: what all layers need follows from them, and a plan of few layers is quick."""
    return tuple({kind_of(layer): layer for layer in reversed(layers)}.values())[::-1]


@dataclass(frozen=True, slots=True)
class Split:
    """A number of ranks as tensor parallel x data parallel, planned and judged.

    Attributes:
        engine: with these sizes.
        plan: of one layer of each kind.
        fit: its memory.
    """

    engine: EngineFacts
    plan: Plan
    fit: Fit


def splits(
    checkpoint: Checkpoint, engine: EngineFacts, options: Options, serving: Serving, ranks: int
) -> Iterator[Split]:
    """Every legal split of so many ranks: heads divide over the tensor-parallel ranks, which stay within a node."""
    layers = one_of_each(checkpoint.layers)
    node = ranks if serving.device is None else serving.device.per_node
    for tensor in range(min(ranks, node), 0, -1):
        if ranks % tensor or (checkpoint.heads and checkpoint.heads % tensor):
            continue
        there = replace(
            engine,
            tensor_parallel=tensor,
            data_parallel=ranks // tensor,
            expert_parallel=ranks > 1,
            pipeline_parallel=1,
        )
        verdict = draft_plan(there, layers, options)
        if violations_of(verdict):
            continue
        plan = plan_of(verdict)
        needed = hccl_of(plan)
        # A line never sets less than HCCL's own default.
        window = None if needed is None else max(needed, DEFAULT_MB)
        yield Split(there, plan, fit(checkpoint, plan, serving, window))


def smallest(
    checkpoint: Checkpoint, engine: EngineFacts, options: Options, serving: Serving, sizes: Sequence[int]
) -> Split | None:
    """The split with the fewest ranks that fits, of several the one that holds the most sequences; None for none."""
    for ranks in sorted(sizes):
        fitting = [split for split in splits(checkpoint, engine, options, serving, ranks) if split.fit.holds]
        if fitting:
            return max(fitting, key=lambda split: split.fit.sequences * split.engine.data_parallel)
    return None
