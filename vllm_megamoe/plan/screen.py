"""The plan on one screen, as the log shows it at start-up."""

from collections.abc import Iterable, Iterator

from vllm_megamoe.plan.layer_plan import LayerPlan, Plan
from vllm_megamoe.profiles.losses import told
from vllm_megamoe.profiles.profile import REVISIONS

_GIB, _MIB = 1 << 30, 1 << 20


def render(plan: Plan) -> str:
    """One line for the engine, then a block for each kind of layer; layers that are planned alike share one."""
    engine = plan.engine
    ranks = f"tensor parallel {engine.tensor_parallel}, data parallel {engine.data_parallel}, {engine.ep_size} ranks"
    lines = [f"megamoe plan: profile {plan.profile.name}{_topology(plan)}, {ranks}, {len(plan.layers)} MoE layers"]
    if plan.profile.product != "none":
        lines.append(f"  revisions in profile names: {REVISIONS}")
    for kind in kinds(plan.layers):
        lines += [f"  {line}" for line in _block(kind)]
    if len(plan.window_bytes) > 1:
        windows = ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in plan.window_bytes.items())
        lines.append(f"  draft layers have a communicator of their own, with another configuration; windows: {windows}")
    weights = sum(layer.weight_bytes for layer in plan.layers)
    lines.append(f"  experts of all layers on a rank: {weights / _GIB:.3f} GiB")
    return "\n".join(lines)


def kinds(layers: Iterable[LayerPlan]) -> list[list[LayerPlan]]:
    """Layers that are planned alike, in the order of their first one."""
    found: dict[object, list[LayerPlan]] = {}
    for layer in layers:
        key = (
            layer.use_case,
            layer.activation,
            layer.shared,
            layer.padding,
            layer.capacity,
            layer.buffer,
            layer.facts.experts_format,
            layer.facts.draft,
            layer.fold_scaling,
            layer.communicator,
            bool(layer.slots),
        )
        found.setdefault(key, []).append(layer)
    return list(found.values())


def layer_numbers(layers: Iterable[LayerPlan]) -> str:
    """`3-60`, `0, 2, 4-6`, or the name where no number is known."""
    layers = list(layers)
    return number_runs(layer.facts.index for layer in layers) or layers[0].facts.name


def number_runs(numbers: Iterable[int]) -> str:
    """`0, 2, 4-6`; empty where one of them is -1, which stands for an unknown number."""
    ordered = sorted(numbers)
    if not ordered or ordered[0] < 0:
        return ""
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _topology(plan: Plan) -> str:
    return f" ({plan.profile.topology})" if plan.profile.is_950 else ""


def _block(layers: list[LayerPlan]) -> Iterator[str]:
    layer = layers[0]
    facts, capacity = layer.facts, layer.capacity
    draft = " (draft)" if facts.draft else ""
    draft = " (draft, a communicator of its own)" if layer.communicator == "draft" else draft
    yield (
        f"layers {layer_numbers(layers)}{draft}: {layer.use_case.value} from {facts.experts_format}"
        f"{f', lossy ({told(layer.loss, layer.use_case)})' if layer.loss else ''}, {layer.activation}"
    )
    yield (
        f"  experts {facts.num_experts}{_slots(layer)} ({layer.experts_per_rank} on a rank), topk {facts.topk}, hidden "
        f"{facts.hidden}, intermediate_hidden {facts.intermediate_hidden}"
    )
    added = layer.padding_bytes * len(layers) / _GIB
    yield f"  padding: {layer.padding}{f', {added:.3f} GiB of a rank in {len(layers)} layer(s)' if added else ''}"
    own, other = layer.shared.use_case, ""
    if facts.shared is not None and own is not None and own is not layer.use_case:
        other = f" as {own.value} from {facts.shared.experts_format}"
    yield f"  shared experts: {layer.shared}{other}"
    window = f", window {layer.window_bytes / _MIB:.1f} MiB" if layer.window_bytes else ""
    hccl = f", HCCL_BUFFSIZE at least {layer.hccl_buffsize_mb}" if layer.hccl_buffsize_mb is not None else ""
    yield (
        f"  rows: {capacity.rows} of a step in {capacity.calls} call(s) of {capacity.chunk} "
        f"(num_max_tokens_per_rank), padded to {_PADS[capacity.pad]}, max_recv_token_num {capacity.max_recv_token_num}"
    )
    yield (
        f"  a rank holds {layer.weight_bytes / _MIB:.1f} MiB of weights per layer, workspace "
        f"{capacity.workspace_bytes / _MIB:.1f} MiB{window}{hccl}"
    )


def _slots(layer: LayerPlan) -> str:
    return f" in {len(layer.slots)} slots by expert_placement" if layer.slots else ""


_PADS = {"own": "nothing", "dp_max": "the largest rank's rows", "num_max": "num_max_tokens_per_rank"}
