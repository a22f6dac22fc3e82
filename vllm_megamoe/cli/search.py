"""`plan --search`: every legal split of some devices, ranked by the bounds of its steps."""

from dataclasses import replace

from vllm_megamoe.cli.model import ModelFiles
from vllm_megamoe.cli.report.fit import Judged, bound_report, device_report
from vllm_megamoe.cli.report.fit_schema import BoundReport, SearchReport, SearchRow
from vllm_megamoe.cli.report.prepare import prepare
from vllm_megamoe.cli.request import Request, Target
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.bounds import decode, prefill
from vllm_megamoe.plan.splits import Split, splits

RANKED = (
    "Splits that fit and keep the targets first; among them by tokens a second of a decode step with as many sequences "
    "as fit and keep the target, at most. These are bounds, not estimates. Pipelines are not among them: a token "
    'passes all stages, so a pipeline\'s step is no shorter; `--from "vllm serve ... -pp N"` plans one.'
)


def search(files: ModelFiles, request: Request, target: Target) -> SearchReport:
    """Judge every legal split of the devices.

    Raises:
        ConfigError: no number of devices, no known device, a model without experts, or no legal split.
    """
    if target.devices is None:
        raise ConfigError("--search needs --devices N, the number of devices to split, such as --devices 16.")
    if request.tensor_parallel is not None or request.data_parallel is not None:
        raise ConfigError("--search chooses --tp and --dp; drop them.")
    sized = replace(request, tensor_parallel=target.devices)
    prepared = prepare(files, sized)
    model, setting, judge = prepared.model, prepared.setting, prepared.judge
    if judge is None:
        raise ConfigError(f"{model.name}: no layer with experts was found, so there is nothing to search.")
    serving = judge.serving
    if serving.device is None:
        raise ConfigError(
            "--search needs a device's figures: name a product with --profile, or --device-memory, --memory-bandwidth, "
            "--link-bandwidth and --peak."
        )
    rows = []
    for split in splits(judge.checkpoint, setting.engine, setting.options, serving, target.devices):
        rows.append(_row(Judged(judge.checkpoint, split.fit), split, target, request.place.router_skew))
    if not rows:
        raise ConfigError(
            f"No split of {target.devices} devices is legal for {model.name} under {setting.profile.name}; legal "
            f"numbers of ranks: {', '.join(map(str, setting.legal)) or 'none'}. `plan --tp {target.devices}` says why."
        )
    return SearchReport(
        model=model.name,
        profile=setting.profile.name,
        devices=target.devices,
        device=device_report(serving.device),
        max_model_len=serving.max_model_len,
        router_skew=request.place.router_skew,
        target_ms=target.milliseconds,
        target_sequences=target.sequences,
        ranked_by=RANKED,
        rows=tuple(sorted(rows, key=_order)),
        notes=tuple(prepared.notes),
    )


def _order(row: SearchRow) -> tuple[bool, bool, float, int]:
    speed = 0.0 if row.decode is None else row.decode.tokens_per_second
    return not row.meets, not row.fits, -speed, -row.left


def _row(judged: Judged, split: Split, target: Target, skew: float) -> SearchRow:
    engine, fit = split.engine, split.fit
    serving, ranks = fit.serving, engine.data_parallel
    most = min(fit.sequences, serving.max_num_seqs, engine.max_num_batched_tokens)
    best: BoundReport | None = None
    curve = []
    for sequences in _growing(most):
        bound = bound_report(judged, split.plan, decode(sequences, serving.max_model_len, skew))
        if bound is None:
            continue
        curve.append((sequences * ranks, bound.seconds))
        if target.milliseconds is None or bound.seconds * 1e3 <= target.milliseconds:
            best = bound
    first = bound_report(judged, split.plan, prefill(min(engine.max_num_batched_tokens, serving.max_model_len), skew))
    assert first is not None  # the device is known
    why = ""
    if not fit.holds:
        why = "does not fit"
    elif fit.sequences * ranks < target.sequences:
        why = f"holds {fit.sequences * ranks} sequences, not {target.sequences}"
    elif best is None:
        why = f"one sequence takes {curve[0][1] * 1e3:.1f} ms at least"
    return SearchRow(
        tensor_parallel=engine.tensor_parallel,
        data_parallel=ranks,
        fits=fit.holds,
        meets=not why,
        why_not=why,
        sequences=fit.sequences * ranks,
        left=fit.left,
        decode=best,
        prefill=first,
        curve=tuple(curve),
    )


def _growing(most: int) -> list[int]:
    """1, 2, 4 ... and the most."""
    found = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*found, most] if most else []
