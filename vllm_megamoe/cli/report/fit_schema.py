"""The schema of what `plan --json` says of memory and of the least time of a step; see `schema`."""

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitReport(_Part):
    """Parallel sizes."""

    tensor_parallel: int
    data_parallel: int


class DeviceReport(_Part):
    """A device, or the user's numbers in its place.

    Attributes:
        name: as `--device` has it.
        memory_gib: that the runtime reports.
        memory_bandwidth_gb, link_gb: 10^9 bytes a second, the link's in one direction; null where no source gives it.
        peak_tera: 10^12 operations a second by element type, where a source gives it.
        sources: of these figures, by field.
    """

    name: str
    memory_gib: float
    memory_bandwidth_gb: float | None
    link_gb: float | None
    peak_tera: dict[str, float]
    sources: dict[str, str]


class FitReport(_Part):
    """What a rank needs and what its device has. Bytes.

    Attributes:
        parameters: of the whole model, in numbers.
        parameter_parts: the same by part.
        gaps: what is not counted, or only about right.
        stored_as: with `--as`, the format that was planned in place of the config's own.
        device: null where none is named and the profile has none.
        utilization: share of the device's memory that the engine takes.
        budget: that share.
        weights: of the fullest rank by part; `routed experts` are the operator's operands, fused shared experts and
            padding included.
        weights_total: their sum.
        window, workspace: of the operator.
        communicators: windows of the others.
        step: the least that the largest step holds beside these.
        left: for the cache; negative where there is no room for anything. Null without a device.
        cache_bits: of a cached number.
        max_model_len: tokens of the longest sequence that was planned for.
        sequence: bytes of one of that length on a rank.
        sequences: how many of them the rest holds, over all data-parallel ranks; null without a device, and where what
            a sequence keeps is not known.
        longest: the longest sequence that the rest holds, at most max_model_len.
        holds: whether one sequence fits at least; null without a device.
        smallest: the fewest ranks that fit; null where none do, or where it was not looked for.
    """

    parameters: int
    parameter_parts: dict[str, int]
    gaps: tuple[str, ...] = ()
    stored_as: str | None = None
    device: DeviceReport | None = None
    utilization: float
    budget: int | None = None
    weights: dict[str, int]
    weights_total: int
    window: int
    workspace: int
    communicators: int
    step: int
    left: int | None = None
    cache_bits: int
    max_model_len: int
    sequence: int
    sequences: int | None = None
    longest: int
    holds: bool | None = None
    smallest: SplitReport | None = None


class BoundReport(_Part):
    """The least time of a step, and the most tokens a second that follow.

    Attributes:
        tokens, sequences: of a data-parallel rank.
        context: tokens of each sequence.
        seconds: at least.
        by: `memory`, `compute` or `wire`, which decides.
        memory, compute, wire: each in seconds; null where a figure of the device is not known.
        tokens_per_second: at most, over all ranks.
        unknown: element types whose peak is not known.
        read, multiplied, sent: bytes read, operations by element type, bytes on the wire.
    """

    tokens: int
    sequences: int
    context: int
    seconds: float
    by: str
    memory: float | None
    compute: float | None
    wire: float | None
    tokens_per_second: float
    unknown: tuple[str, ...] = ()
    read: int
    multiplied: dict[str, float]
    sent: int


class BoundsReport(_Part):
    """Bounds of both kinds of step.

    Attributes:
        router_skew: exponent of the router's power law, 0 for an even one.
        decode: null where not one sequence fits.
    """

    router_skew: float
    decode: BoundReport | None
    prefill: BoundReport


class SearchRow(_Part):
    """One split of the devices.

    Attributes:
        tensor_parallel, data_parallel: its sizes.
        fits: whether one sequence of full length fits at least.
        meets: whether it fits and keeps the targets.
        why_not: what is in the way; empty where it meets them.
        sequences: of full length that fit, over all ranks.
        left: bytes for the cache on a rank.
        decode: the bound with the most sequences that keep the target; null where none do.
        prefill: the bound of a whole step of prompt tokens.
        curve: (sequences over all ranks, seconds at least) of a decode step, for growing numbers of sequences.
    """

    tensor_parallel: int
    data_parallel: int
    fits: bool
    meets: bool
    why_not: str
    sequences: int
    left: int
    decode: BoundReport | None
    prefill: BoundReport | None
    curve: tuple[tuple[int, float], ...] = ()


class SearchReport(_Part):
    """What `plan --search --json` prints; rows from best to worst.

    Attributes:
        ranked_by: the sentence that says how.
        target_ms: most milliseconds of a decode step, null for no target.
        target_sequences: fewest sequences of full length that must fit.
    """

    schema_version: int = 1
    model: str
    profile: str
    devices: int
    device: DeviceReport
    max_model_len: int
    router_skew: float
    target_ms: float | None
    target_sequences: int
    ranked_by: str
    rows: tuple[SearchRow, ...]
    notes: tuple[str, ...] = ()
