"""The experts of one layer as files in the package's own format: each expert converted, laid out, read back, compared.

Routed experts are operands, in one file for each rank of an expert-parallel group; shared ones are codes and scales,
in a file of their own, because every rank needs them. A worker holds one expert.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.explained import EXACT, conversion_steps
from vllm_megamoe.checkpoint.formats import OWN_PREFIX, format_named
from vllm_megamoe.checkpoint.layers import DOWN, GATE, UP
from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.own_shared import OwnMatrix, tensors_of
from vllm_megamoe.checkpoint.reading import StoredLayer
from vllm_megamoe.checkpoint.stored.matrix import Matrix, cut_expert, join_expert, values_of
from vllm_megamoe.checkpoint.stored.part import read_projection
from vllm_megamoe.checkpoint.writing import Declared, data_of, in_order, write_file
from vllm_megamoe.cli.checkpoint.journal import Journal, Written
from vllm_megamoe.cli.checkpoint.opened import progress
from vllm_megamoe.cli.checkpoint.run_expert import finite, weights_of
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.experts.canonical import Experts, MxExperts
from vllm_megamoe.experts.convert import fitted
from vllm_megamoe.experts.operands import KINDS, to_operands
from vllm_megamoe.experts.steps import to_mx
from vllm_megamoe.numerics.mx import EMAX, MxScale
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.shared import plan_shared
from vllm_megamoe.profiles.use_cases import UseCase

_MOST_WORKERS = 8
"""Each holds an expert, its operands and their numbers in float32; more would wait for the disk."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a conversion was asked for, beside use case and profile.

    Attributes:
        mx_scale: how weights that are no MX yet get their scales.
        shared: what shared experts become, None to keep them.
        ranks: of the expert-parallel group that files are cut for.
    """

    mx_scale: MxScale = "floor"
    shared: UseCase | None = None
    ranks: int = 1

    def check(self, layer: MoeFacts) -> None:
        """Raise ConfigError where the layer's experts are no multiple of the ranks."""
        if layer.num_experts % self.ranks:
            raise ConfigError(
                f"--ep {self.ranks}: {layer.name} has {layer.num_experts} experts; expected a number of ranks that "
                "divides them: the operator holds equally many on each rank."
            )


@dataclass(frozen=True, slots=True)
class Job:
    """One file of experts.

    Attributes:
        file: its name.
        block: of the entry in config.json.
        experts: numbers; none for shared ones.
    """

    file: str
    block: str
    experts: range | None


def jobs_of(layer: MoeFacts, stored: StoredLayer, choices: Choices) -> Iterator[Job]:
    """The files of a layer, routed experts first.

    Rank r of n holds experts r E/n to (r + 1) E/n - 1, as vLLM deals them out (`linear` placement).
    """
    start = f"megamoe-experts-{layer.index:05}{'-draft' if layer.draft else ''}"
    count = layer.num_experts // choices.ranks
    for rank in range(choices.ranks):
        cut = f"-rank-{rank:03}-of-{choices.ranks:03}" if choices.ranks > 1 else ""
        experts = range(rank * count, (rank + 1) * count)
        yield Job(f"{start}{cut}.safetensors", f"{stored.tensors.block}.experts", experts)
    if choices.shared is not None and stored.tensors.shared:
        yield Job(f"{start}-shared.safetensors", stored.tensors.shared_module, None)


def check_shared(layer: MoeFacts, use_case: UseCase, plan: LayerPlan, options: Options) -> None:
    """Raise ConfigError where a layer's shared experts, once converted, would not be fused: nothing is won then."""
    if layer.shared is None:
        return
    own, routed = (format_named(OWN_PREFIX + case.value) for case in (use_case, plan.use_case))
    after = replace(layer, experts_format=routed, shared=replace(layer.shared, experts_format=own))
    told = plan_shared(after, plan.use_case, plan.profile, options)
    if told.mode != "fused" or told.use_case is not use_case:
        raise ConfigError(
            f"--shared {use_case.value}: {layer.name}: {told.reason or told}; expected shared experts that profile "
            f"{plan.profile.name} runs within the operator. Leave --shared out, or name another --shared-use-case or "
            "--profile."
        )


def write_experts(
    job: Job, layer: MoeFacts, plan: LayerPlan, stored: StoredLayer, choices: Choices, journal: Journal
) -> None:
    """Write one file, unless it is there from an earlier run.

    Raises:
        CheckpointError: a tensor of the source is not what its format says, or nothing can be written.
    """
    if journal.has(job.file):
        return
    maker: _Maker = (_Shared if job.experts is None else _Routed)(job, layer, plan, stored, choices)
    numbers = range(1) if job.experts is None else job.experts
    declared = [Declared.of(name, tensor) for number in numbers for name, tensor in maker.like(number).items()]
    losses: list[tuple[float, float]] = []

    def pieces() -> Iterator[Any]:
        workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
        what = f"layer {layer.index}" + ("" if job.experts is not None else ", shared")
        for made in progress(in_order(maker.make, numbers, workers), len(numbers), what):
            losses.append(made.loss)
            yield from map(data_of, made.tensors)

    write_file(journal.folder / job.file, declared, pieces())
    off, size = (math.fsum(column) for column in zip(*losses, strict=True))
    names, held = tuple(one.name for one in declared), sum(one.nbytes for one in declared)
    journal.add(job.file, Written(names, maker.entry, off, size, held))


@dataclass(frozen=True, slots=True)
class _Made:
    """The tensors of one expert in the order of the file, and its two sums of squares (see Written)."""

    tensors: list[Tensor]
    loss: tuple[float, float]


class _Maker(Protocol):
    """Makes the tensors of one expert after the other."""

    @property
    def entry(self) -> dict[str, Any]:
        """In config.json."""

    def like(self, number: int) -> Mapping[str, Tensor]:
        """Name -> a tensor of its dtype and shape, in the order of the file."""

    def make(self, number: int) -> _Made:
        """One expert, compared with its source."""


class _Routed:
    """Operands of routed experts."""

    def __init__(self, job: Job, layer: MoeFacts, plan: LayerPlan, stored: StoredLayer, choices: Choices) -> None:
        self._job, self._layer, self._plan, self._stored, self._choices = job, layer, plan, stored, choices
        assert job.experts is not None
        self._first = job.experts[0]
        kind, sizes = self._converted(stored.expert(self._first)).kind, plan.padding
        source = layer.experts_format.name
        self._own = OwnLayer(plan.use_case, kind, sizes.hidden, sizes.intermediate_hidden, source)

    @property
    def entry(self) -> dict[str, Any]:
        return self._own.entry()

    def like(self, number: int) -> Mapping[str, Tensor]:
        spelling = self._stored.tensors.spelling
        names = {
            field: (spelling.get(PARTS[field][0], PARTS[field][0]), PARTS[field][1]) for field in self._own.tensors
        }
        # As the family calls a projection: vLLM's loaders of Mixtral look for w1.
        return {
            f"{self._job.block}.{number}.{projection}.{part}": self._own.tensors[field]
            for field, (projection, part) in names.items()
        }

    def make(self, number: int) -> _Made:
        where = f"{self._layer.name}.{number}"
        source = finite(self._stored.expert(number), where)
        plain = self._converted(source)
        if plain.kind != self._own.element:
            raise CheckpointError(
                f"{where} becomes {plain.kind}, expert {self._first} {self._own.element}; expected one kind for a "
                "layer. Name another use case."
            )
        (operands,) = to_operands(plain.padded(self._own.hidden, self._own.intermediate_hidden), self._plan.use_case)
        tensors = self._own.tensors_of(operands)
        back = self._own.experts_of(tensors, self._layer.hidden, self._layer.intermediate_hidden, where)
        loss = _compared(source, plain, back, bool(self._plan.loss), where, number == self._first)
        return _Made(list(tensors.values()), loss)

    def _converted(self, experts: Experts) -> Experts:
        """In the use case's kind."""
        experts = _scaled(experts, self._plan.use_case, self._choices.mx_scale)
        return fitted(experts, self._plan.use_case, None, None, torch.bfloat16)


class _Shared:
    """Codes and scales of a shared MLP."""

    def __init__(self, job: Job, layer: MoeFacts, plan: LayerPlan, stored: StoredLayer, choices: Choices) -> None:
        assert choices.shared is not None
        assert layer.shared is not None
        del plan
        case, spelling = choices.shared, stored.tensors.spelling
        source = finite(stored.shared_expert(), job.block)
        target = fitted(_scaled(source, case, choices.mx_scale), case, None, None, torch.bfloat16)
        self.entry = {"use_case": case.value, "element": target.kind, "source": layer.shared.experts_format.name}
        self._tensors: dict[str, Tensor] = {}
        back: list[Matrix] = []
        for projection, matrix in zip((GATE, UP, DOWN), cut_expert(target), strict=True):
            name = f"{job.block}.{spelling.get(projection, projection)}"
            tensors = tensors_of(matrix, name)
            self._tensors |= {f"{name}.{part}": tensor for part, tensor in tensors.items()}
            rows, columns = values_of(matrix).shape
            back.append(read_projection(OwnMatrix(case), tensors, rows, columns, name))
        lossy = KINDS[case][0] != source.kind
        gate, up, down = back
        loss = _compared(source, target, join_expert(gate, up, down, job.block), lossy, job.block, thorough=True)
        self._made = _Made([*self._tensors.values()], loss)

    def like(self, number: int) -> Mapping[str, Tensor]:
        del number
        return self._tensors

    def make(self, number: int) -> _Made:
        del number
        return self._made


def _scaled(experts: Experts, use_case: UseCase, mx_scale: MxScale) -> Experts:
    """MX codes by the rule that was asked for, where the experts are none yet."""
    elem = next((elem for elem in EMAX if elem == KINDS[use_case][0]), None)
    if mx_scale == "ceil" and elem is not None and not isinstance(experts, MxExperts):
        return to_mx(elem, "ceil")(experts)
    return experts


def _compared(
    source: Experts, made: Experts, back: Experts, lossy: bool, where: str, thorough: bool
) -> tuple[float, float]:
    """Sums of squares of what was taken from the weights, and of the weights where something was.

    Args:
        source: of the checkpoint.
        made: what it became.
        back: what the bytes of the file mean, which must be the same to the last bit.
        lossy: whether a plain rounding is allowed.
        where: for messages.
        thorough: whether every weight is looked at by itself; it takes five times as long as all else.

    Raises:
        CheckpointError: what was written means other numbers than the source.
    """
    if not _same(made, back):
        raise CheckpointError(f"{where}: the bytes that were made of it mean other numbers; report this.")
    if _same(source, made):
        return 0.0, 1.0
    before, after = weights_of(source), weights_of(made)
    off = sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True))
    size = sum(float(b.square().sum()) for b in before)
    if (off and not lossy) or (thorough and conversion_steps(before, after, made.kind, exact=not lossy) > EXACT):
        raise CheckpointError(
            f"{where}: what was made of it means other numbers than the source; expected at most a rounding. Report "
            "this with the name of the checkpoint."
        )
    return off, size


def _same(one: Experts, other: Experts) -> bool:
    """Whether codes and scales are equal to the last bit, so that no number needs to be looked at."""
    if one.kind != other.kind or one.w13.dtype != other.w13.dtype:
        return False
    pairs = [(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)]
    return all(_bytes(a).equal(_bytes(b)) for a, b in pairs if isinstance(a, Tensor))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
