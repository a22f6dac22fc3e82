"""The schema of `plan --json`.

Stable: a field keeps its name and meaning while `schema_version` stays; new fields may be added. Sizes are bytes unless
a name says otherwise. `vllm_megamoe.cli.report.schema.PlanReport.model_json_schema()` gives it as JSON schema.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from vllm_megamoe.cli.report.fit_schema import BoundsReport, FitReport
from vllm_megamoe.cli.serve_line.line import Step


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FormatReport(_Part):
    """A format of routed experts.

    Attributes:
        name: stable name, `bf16` for none.
        label: for people.
        loads: whether this version loads it; the plan of one that it does not load is never valid.
        note: conversions and their loss.
    """

    name: str
    label: str
    loads: bool
    note: str


class EngineReport(_Part):
    """The engine that was planned for.

    Attributes:
        tensor_parallel, data_parallel, pipeline_parallel: sizes.
        ep_size: ranks of the operator's communicator.
        chosen_here: whether the sizes were chosen by this command because none were given.
        max_num_batched_tokens: rows of a step and data-parallel rank.
        dtype: of the rows.
    """

    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    ep_size: int
    chosen_here: bool
    max_num_batched_tokens: int
    dtype: str


class ActivationReport(_Part):
    """Activation as the call passes it; `clamp` null for none."""

    name: str
    clamp: float | None
    params: dict[str, float]
    text: str


class SharedReport(_Part):
    """Shared experts: `none`, `fused` into the call as `pieces` experts of the routed width, or on vLLM's path.

    Attributes:
        use_case: what fused ones run as, null otherwise; on 950 of 9.2 it may be another one than the routed experts'.
    """

    mode: Literal["none", "fused", "vllm"]
    pieces: int
    reason: str
    use_case: str | None = None


class PaddingReport(_Part):
    """Zero-padding of the experts.

    Attributes:
        hidden, intermediate_hidden: as the operator gets them.
        overhead: added weights and FLOPs, a fraction.
        bytes_per_rank: of weights, over all layers of the group.
    """

    hidden: int
    intermediate_hidden: int
    overhead: float
    bytes_per_rank: int


class RowsReport(_Part):
    """Rows of a step and of a call.

    Attributes:
        per_step: most rows that a rank brings in a step.
        per_call: most rows of one call, num_max_tokens_per_rank.
        calls: calls of the largest step, for each layer.
        padded_to: `own`, `dp_max` or `num_max`.
        max_recv_token_num: of the buffer, 0 for all that can come.
        receive_bound: most rows that a rank can receive in a call.
    """

    per_step: int
    per_call: int
    calls: int
    padded_to: Literal["own", "dp_max", "num_max"]
    max_recv_token_num: int
    receive_bound: int


class GroupReport(_Part):
    """Layers that are alike.

    Attributes:
        layers: their numbers, such as `3-60`.
        count: how many.
        draft: whether they belong to a draft or MTP model.
        format: name of the experts' format.
        num_experts, experts_per_rank, topk, hidden, intermediate_hidden: the model's own sizes.
        runs: `mega_moe`, or `rejected` where no plan of them exists; all that follows is null then.
        use_case, loss: operator scenario, and the error of a lossy conversion (empty for an exact one), rms of the
            weights' error over their rms.
        communicator: `main`, or `draft` for draft layers that have one of their own.
    """

    layers: str
    count: int
    draft: bool
    format: str
    num_experts: int
    experts_per_rank: int
    topk: int
    hidden: int
    intermediate_hidden: int
    runs: Literal["mega_moe", "rejected"]
    use_case: str | None = None
    loss: str | None = None
    communicator: Literal["main", "draft"] | None = None
    activation: ActivationReport | None = None
    shared_experts: SharedReport | None = None
    padding: PaddingReport | None = None
    rows: RowsReport | None = None


class MemoryReport(_Part):
    """Bytes on one rank.

    Attributes:
        weights: operands of all MoE layers of a pipeline stage, fused shared experts and padding included.
        window: of all communicators (A2/A3: both halves of each), or 950's own allocation; 0 in profile `none`.
        workspace: of the largest call; layers use it one after another.
    """

    weights: int
    window: int
    workspace: int


class WireReport(_Part):
    """Bytes that one token moves in one MoE layer, its own rank's share included.

    Attributes:
        dispatch, combine: as planned.
        dispatch_without_router_weights, dispatch_with_router_weights: topk_weights_type 0 and 1; null where the product
            has no such mode.
        combine_without_dedup: combine_comm_mode 0.
        combine_with_dedup, combine_with_dedup_worst: combine_comm_mode 1, on average for a uniform router and at worst;
            null where the product has no such mode.
        remote_share: part of it that leaves the rank, on average for a uniform router.
    """

    dispatch: int
    combine: int
    dispatch_without_router_weights: int
    dispatch_with_router_weights: int | None
    combine_without_dedup: int
    combine_with_dedup: int | None
    combine_with_dedup_worst: int | None
    remote_share: float


class ViolationReport(_Part):
    """A violated rule: where, what came, what was expected, what to do."""

    where: str
    got: str
    expected: str
    remedy: str


class CurvePoint(_Part):
    """One legal EP size: what a rank holds and a token moves there."""

    ep_size: int
    memory: MemoryReport
    wire: WireReport


class PlanReport(_Part):
    """What `plan MODEL --json` prints.

    Attributes:
        schema_version: 1.
        model, architecture, num_layers: as the config says.
        in_vllm: releases of vLLM, of those that this package meets, that have a class of this architecture.
        moe_layers: layers with routed experts that were planned; 0 for a dense model.
        drafts_left_out: draft (MTP) layers with experts that were not, because speculation was not asked for.
        summary: the answer in a sentence.
        holds: whether no rule is violated; decides the exit code.
        profile, topology: limits that were applied.
        formats: of the routed experts.
        engine: what was planned for; null without experts.
        groups: layers that are alike.
        ep_sizes: legal ones for this model and profile.
        memory, wire: null where nothing could be planned.
        fit: the whole model on a rank and its device.
        bounds: the least time of a step; null without a device, or where nothing could be planned.
        explained: with --explain, how the bounds come about.
        hccl_buffsize_mb: what HCCL_BUFFSIZE must be at least, null where it is not needed.
        violations: every violated rule.
        notes: sentences about what is worth knowing and violates nothing.
        corrections: with --from, what to drop, add and set.
        command: the line to copy; null where rules are violated (with --from: always the corrected line).
        curve: with --plot, the points that were drawn.
    """

    schema_version: int = 1
    model: str
    architecture: str
    in_vllm: tuple[str, ...] = ()
    num_layers: int
    moe_layers: int
    drafts_left_out: int = 0
    summary: str
    holds: bool
    profile: str
    topology: str
    formats: tuple[FormatReport, ...] = ()
    engine: EngineReport | None = None
    groups: tuple[GroupReport, ...] = ()
    ep_sizes: tuple[int, ...] = ()
    memory: MemoryReport | None = None
    fit: FitReport | None = None
    bounds: BoundsReport | None = None
    explained: tuple[str, ...] = ()
    hccl_buffsize_mb: int | None = None
    wire: WireReport | None = None
    violations: tuple[ViolationReport, ...] = ()
    notes: tuple[str, ...] = ()
    corrections: tuple[Step, ...] = ()
    command: str | None = None
    curve: tuple[CurvePoint, ...] = ()


class ComparisonReport(_Part):
    """What `plan MODEL --compare ... --json` prints: one report per profile, in the order asked for."""

    schema_version: int = 1
    model: str
    profiles: tuple[PlanReport, ...]
