"""How fast a step can be at best: bytes over bandwidths and multiply-adds over peaks. Bounds, never estimates.

A step takes at least as long as the slowest of three things that the fullest rank must do, even if all else overlaps:

    memory   (weights that are read + cache that is read) / memory bandwidth
    compute  2 x multiply-adds / peak, for each element type
    wire     bytes that leave or reach the rank / link bandwidth of one direction

Kernels, launches, waiting and everything that does not overlap come on top. The functions on top of the file know no
device and no model: tests and benchmarks of scale use them as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.whole.tensors import Cache
from vllm_megamoe.profiles.devices import Device, Element
from vllm_megamoe.profiles.sizes.wire import wire_bytes_per_token
from vllm_megamoe.profiles.use_cases import UseCase


def router_shares(experts: int, topk: int, skew: float) -> list[float]:
    """How likely a token goes to each expert, in descending order; the sum is topk.

    The i-th expert is as popular as i ** -skew, and no token goes to an expert twice, so that none has more than 1:
    what would be above goes to the others in proportion. A skew of 0 is an even router, 1 is Zipf's law.
    """
    weights = [(place + 1.0) ** -skew for place in range(experts)]
    certain, left = 0, sum(weights)
    while certain < topk and weights[certain] * (topk - certain) >= left:
        left -= weights[certain]
        certain += 1
    factor = (topk - certain) / left if left > 0 else 0.0
    return [1.0 if place < certain else weight * factor for place, weight in enumerate(weights)]


def fullest_rank(shares: Sequence[float], ranks: int) -> list[float]:
    """The shares of the fullest rank's experts, where experts are dealt out in turn, the popular ones first."""
    return list(shares[::ranks])


def touched(shares: Sequence[float], tokens: int) -> float:
    """How many of these experts at least one of so many tokens is expected to go to, tokens choosing independently."""
    return sum(1.0 - (1.0 - share) ** tokens for share in shares)


def all_reduce_bytes(ranks: int, size: float) -> float:
    """Bytes that a rank sends at least for a sum over ranks: a reduce-scatter and an all-gather."""
    return 2.0 * (ranks - 1) / ranks * size


@dataclass(frozen=True, slots=True)
class Work:
    """What the fullest rank does in a step.

    Attributes:
        weights, cache: bytes that are read.
        operations: twice the multiply-adds, by element type.
        wire: bytes in the busier direction.
    """

    weights: float
    cache: float
    operations: Mapping[Element, float]
    wire: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time of a step.

    Attributes:
        memory, compute, wire: seconds; None where the device's figure has no source and the user gave none.
        unknown: element types whose peak is not known, with work that is not in `compute`.
    """

    memory: float | None
    compute: float | None
    wire: float | None
    unknown: tuple[Element, ...] = ()

    @property
    def seconds(self) -> float:
        """The largest of those that are known; 0 where none is."""
        return max((value for value in (self.memory, self.compute, self.wire) if value is not None), default=0.0)

    @property
    def by(self) -> str:
        """What decides: `memory`, `compute` or `wire`; empty where nothing is known."""
        known = {name: getattr(self, name) for name in ("memory", "compute", "wire") if getattr(self, name) is not None}
        return max(known, key=lambda name: known[name]) if known else ""


def bound_of(work: Work, device: Device) -> Bound:
    """The least time of some work on a device."""
    bandwidth, link = device.memory_bandwidth, device.link
    known = {element: size for element, size in work.operations.items() if element in device.peak and size}
    unknown = tuple(element for element, size in work.operations.items() if size and element not in device.peak)
    return Bound(
        None if bandwidth is None else (work.weights + work.cache) / bandwidth,
        sum(size / device.peak[element] for element, size in known.items()) if known else None,
        None if link is None else work.wire / link,
        unknown,
    )


_MULTIPLIES: Mapping[UseCase, Element] = {
    UseCase.A16W16: "bf16",
    UseCase.A8W8_INT: "int8",
    UseCase.A8W4_INT: "int8",
    UseCase.A8W8_FP: "fp8",
    UseCase.A8W4_FP: "fp8",
    UseCase.A4W4_FP: "fp4",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step to be bounded.

    Attributes:
        tokens: rows of a data-parallel rank.
        sequences: of a data-parallel rank, each of which gets one row of logits.
        seen: tokens that a row attends to, on average.
        cached: tokens of each sequence whose cache is read.
        skew: of the router, see `router_shares`.
    """

    tokens: int
    sequences: int
    seen: int
    cached: int
    skew: float = 0.0


def decode(sequences: int, context: int, skew: float = 0.0) -> Step:
    """A step that makes one token for each sequence of so many tokens."""
    return Step(sequences, sequences, context, context, skew)


def prefill(tokens: int, skew: float = 0.0) -> Step:
    """A step that reads one prompt of so many tokens: a row sees half of them on average, and nothing is cached yet."""
    return Step(tokens, 1, max(1, tokens // 2), 0, skew)


def layers_work(plan: LayerPlan, step: Step, ranks: int, tokens: int, own: float) -> Work:
    """One MoE layer on the fullest rank: operands of the experts that are reached, products, dispatch and combine.

    Args:
        tokens: rows of the step over all ranks.
        own: rows that a rank brings.
    """
    facts = plan.facts
    shares = fullest_rank(router_shares(facts.num_experts, facts.topk, step.skew), ranks)
    rows = tokens * sum(shares)
    matrices = 2 if facts.activation.name.endswith("_no_mul") else 3
    size = matrices * plan.padding.hidden * plan.padding.intermediate_hidden
    wire = wire_bytes_per_token(plan.profile, plan.buffer, use_case=plan.use_case.value)
    # Rows over the even share: the fullest rank receives more than it sends.
    busier = max(1.0, sum(shares) * ranks / facts.topk)
    return Work(
        plan.weight_bytes * touched(shares, tokens) / len(shares),
        0.0,
        {_MULTIPLIES[plan.use_case]: 2.0 * rows * size},
        own * busier * (wire.dispatch + wire.combine) * wire.remote_share,
    )


def linear_element(bits: float, product: str) -> Element:
    """What a linear layer of so many bits multiplies: quantised ones go through INT8, on 950 through FP8."""
    if bits >= 16:
        return "bf16"
    return "fp8" if product == "950" else "int8"


def attended(cache: Cache, seen: int) -> int:
    """Entries of a cache that a row attends to."""
    entries = cache.entries(seen)
    return min(entries, cache.most_scored) if cache.most_scored else entries
