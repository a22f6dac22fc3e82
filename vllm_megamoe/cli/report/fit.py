"""From a request to what memory and speed are judged by, and from the judgement to its report."""

from dataclasses import dataclass

from vllm_megamoe.checkpoint.formats import ExpertsFormat
from vllm_megamoe.cli.model import Model, ModelFiles
from vllm_megamoe.cli.report.fit_schema import BoundReport, BoundsReport, DeviceReport, FitReport, SplitReport
from vllm_megamoe.cli.request import Place
from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.bounds import Step, bound_of, decode, prefill
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.fit import DEFAULT_SEQUENCES, DEFAULT_UTILIZATION, Checkpoint, Fit, Serving, checkpoint_of
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.step_work import step_work
from vllm_megamoe.plan.stored_as import linear_bits
from vllm_megamoe.plan.whole.cache import cache_bits_of
from vllm_megamoe.plan.whole.model import own_length
from vllm_megamoe.profiles.devices import GB, TERA, Device, device_of, find_device, with_numbers
from vllm_megamoe.profiles.profile import Profile


def read_checkpoint(model: Model, files: ModelFiles, stored_as: ExpertsFormat | None) -> Checkpoint:
    """The whole model of the files, stored as they say or as the user wants it planned."""
    bits = None if stored_as is None else linear_bits(stored_as)
    return checkpoint_of(files.config, files.side_files, model.layers, model.dtype, bits)


def read_device(place: Place, profile: Profile) -> Device | None:
    """The device that was named, else the profile's; with the user's numbers. None where only a twin is planned.

    Raises:
        ConfigError: an unknown device, or one of another product than the profile's.
    """
    device = find_device(place.device) if place.device is not None else device_of(profile.product)
    if device is not None and device.product != profile.product and profile.product != "none":
        raise ConfigError(
            f"--device {device.name} is of {device.product}, the profile {profile.name} of {profile.product}; expected "
            "both of one product. Change one."
        )
    if device is None:
        if place.device_memory is None:
            return None
        device = Device("the command line's", "none", place.device_memory)
    return with_numbers(
        device,
        memory_gib=place.device_memory,
        memory_bandwidth_gb=place.memory_bandwidth,
        peak_tflops=place.peak,
        link_gb=place.link_bandwidth,
    )


def read_serving(files: ModelFiles, place: Place, line: ServeLine | None, profile: Profile) -> Serving:
    """What is to be served where: options of the command win over the line's flags, vLLM's defaults stand behind both.

    Raises:
        ConfigError: a flag's value is not what it takes.
    """
    own = own_length(files.config)
    asked = place.max_model_len
    if asked is None and line is not None and line.value("max-model-len") not in (None, "auto", "-1"):
        asked = line.number("max-model-len", own)
    share = place.memory_utilization
    if share is None:
        share = _share(line) if line is not None else DEFAULT_UTILIZATION
    sequences = place.max_num_seqs
    dtype, contexts = place.kv_cache_dtype or "auto", 1
    if line is not None:
        sequences = sequences or line.number("max-num-seqs", DEFAULT_SEQUENCES)
        dtype = place.kv_cache_dtype or line.value("kv-cache-dtype") or "auto"
        contexts = line.number("decode-context-parallel-size", 1)
    return Serving(
        read_device(place, profile),
        share,
        asked or own,
        asked is not None,
        sequences or DEFAULT_SEQUENCES,
        cache_bits_of(files.config, files.side_files, dtype),
        contexts,
    )


def _share(line: ServeLine) -> float:
    text = line.value("gpu-memory-utilization")
    if text is None:
        return DEFAULT_UTILIZATION
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ConfigError(f"--gpu-memory-utilization {text!r} in the command line; expected a number above 0, up to 1.")
    return share


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan with its memory.

    Attributes:
        checkpoint: the whole model.
        fit: on a rank.
        smallest: the smallest engine that fits, where it was looked for and found.
        stored_as: name of the format that was planned in place of the config's own.
    """

    checkpoint: Checkpoint
    fit: Fit
    smallest: EngineFacts | None = None
    stored_as: str | None = None


def fit_report(judged: Judged, engine: EngineFacts) -> FitReport:
    """The judgement as data."""
    whole, fit, serving = judged.checkpoint.whole, judged.fit, judged.fit.serving
    known = serving.device is not None
    parts: dict[str, int] = {"routed experts": round(fit.weights.routed)}
    for name, size in fit.weights.parts.items():
        parts[name] = parts.get(name, 0) + round(size)
    best = judged.smallest
    return FitReport(
        parameters=whole.parameters,
        parameter_parts={str(part): size for part, size in whole.parts.items()},
        gaps=whole.gaps,
        stored_as=judged.stored_as,
        device=None if serving.device is None else device_report(serving.device),
        utilization=serving.utilization,
        budget=serving.budget if known else None,
        weights=parts,
        weights_total=fit.weights.total,
        window=fit.window,
        workspace=fit.workspace,
        communicators=fit.communicators,
        step=fit.step,
        left=fit.left if known else None,
        cache_bits=serving.cache_bits,
        max_model_len=serving.max_model_len,
        sequence=fit.sequence,
        sequences=fit.sequences * engine.data_parallel if known and fit.sequence else None,
        longest=fit.longest,
        holds=fit.holds if known else None,
        smallest=None
        if best is None
        else SplitReport(tensor_parallel=best.tensor_parallel, data_parallel=best.data_parallel),
    )


def device_report(device: Device) -> DeviceReport:
    """A device as data."""
    return DeviceReport(
        name=device.name,
        memory_gib=device.memory_gib,
        memory_bandwidth_gb=None if device.memory_bandwidth is None else device.memory_bandwidth / GB,
        link_gb=None if device.link is None else device.link / GB,
        peak_tera={element: peak / TERA for element, peak in device.peak.items()},
        sources=dict(device.sources),
    )


def bound_report(judged: Judged, plan: Plan, step: Step) -> BoundReport | None:
    """The bound of one step; None without a device."""
    device = judged.fit.serving.device
    if device is None:
        return None
    work = step_work(judged.checkpoint, plan, judged.fit, step)
    bound = bound_of(work, device)
    tokens = step.tokens * plan.engine.data_parallel
    return BoundReport(
        tokens=step.tokens,
        sequences=step.sequences,
        context=step.cached or step.tokens,
        seconds=bound.seconds,
        by=bound.by,
        memory=bound.memory,
        compute=bound.compute,
        wire=bound.wire,
        tokens_per_second=tokens / bound.seconds if bound.seconds else 0.0,
        unknown=bound.unknown,
        read=round(work.weights + work.cache),
        multiplied={str(element): size for element, size in work.operations.items()},
        sent=round(work.wire),
    )


def bounds_report(judged: Judged, plan: Plan, skew: float) -> BoundsReport | None:
    """Bounds of the largest decode step that fits and of a whole step of prompt tokens; None without a device."""
    fit, serving = judged.fit, judged.fit.serving
    first = bound_report(judged, plan, prefill(min(plan.engine.max_num_batched_tokens, serving.max_model_len), skew))
    if first is None or not plan.layers:
        return None
    sequences = min(fit.sequences, serving.max_num_seqs, plan.engine.max_num_batched_tokens)
    there = bound_report(judged, plan, decode(sequences, serving.max_model_len, skew)) if sequences else None
    return BoundsReport(router_skew=skew, decode=there, prefill=first)
