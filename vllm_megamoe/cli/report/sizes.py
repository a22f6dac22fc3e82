"""Memory of a rank and bytes on the wire, from the plan's own numbers."""

from vllm_megamoe.cli.report.schema import MemoryReport, WireReport
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.profiles.sizes import wire_bytes_per_token


def memory_of(plan: Plan) -> MemoryReport | None:
    """What the operator takes on a rank; of a pipeline the share of its largest stage. None for an empty plan."""
    if not plan.layers:
        return None
    stages = plan.engine.pipeline_parallel
    weights = sorted((layer.weight_bytes for layer in plan.layers), reverse=True)
    windows = {layer.buffer: layer.window_bytes for layer in plan.layers}
    return MemoryReport(
        weights=sum(weights[: -(-len(weights) // stages)]),
        window=sum(windows.values()),
        workspace=max(layer.capacity.workspace_bytes for layer in plan.layers),
    )


def wire_of(plan: Plan) -> WireReport | None:
    """What a token of the first layer moves. None for an empty plan."""
    if not plan.layers:
        return None
    first = plan.layers[0]
    wire = wire_bytes_per_token(plan.profile, first.buffer, use_case=first.use_case.value)
    expected = wire.combine_merged_expected
    merged = first.buffer.combine_comm_mode == 1 and expected is not None
    return WireReport(
        dispatch=wire.dispatch,
        combine=round(expected or 0) if merged else wire.combine,
        dispatch_without_router_weights=wire.dispatch_without_weights,
        dispatch_with_router_weights=wire.dispatch_with_weights,
        combine_without_dedup=wire.combine,
        combine_with_dedup=None if expected is None else round(expected),
        combine_with_dedup_worst=wire.combine_merged_worst,
        remote_share=round(wire.remote_share, 4),
    )


def hccl_of(plan: Plan) -> int | None:
    """The HCCL_BUFFSIZE that the largest layer needs, in MB; None where none needs it."""
    return max((layer.hccl_buffsize_mb for layer in plan.layers if layer.hccl_buffsize_mb is not None), default=None)
