"""A folder's tensors against config.json and the experts' format, from headers alone: malformed is said before loading.

Every layer, expert, projection and part is looked at. What is said is a contradiction between files, never a guess: a
layer whose names no naming explains is a note. Values (a scale of 0, a NaN) are looked at where tensors are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_megamoe.checkpoint.formats import ExpertsFormat, Known, Mixed
from vllm_megamoe.checkpoint.headers import COPY, DTYPES, Entry, Headers, Problem
from vllm_megamoe.checkpoint.layers import DOWN, FUSED_PARTS, GATE, UP, LayerId, Layers, LayerTensors, Parts
from vllm_megamoe.checkpoint.stored.part import Part, fits, shapes_text
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.errors import CheckpointError

CONFIG = "config.json"
_ALIKE = "Correct the description, or quantise these experts alike."
_WORDS = {dtype: word for word, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What config.json asks of a layer.

    Attributes:
        name: vLLM's prefix of its experts.
        ids: the numbers that the files may give the layer, the likeliest first.
        experts: E.
        hidden, intermediate: H and I.
        form: the routed experts' format.
        gated: whether there is a gate beside up and down.
        has_bias: whether experts carry biases.
        shared: H, width and format of the shared MLP, None where there is none.
        required: whether the files must hold it; not where they may leave a draft layer out.
    """

    name: str
    ids: tuple[LayerId, ...]
    experts: int
    hidden: int
    intermediate: int
    form: ExpertsFormat
    gated: bool = True
    has_bias: bool = False
    shared: tuple[int, int, ExpertsFormat] | None = None
    required: bool = True

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Projection -> N, K."""
        return _projections(self.hidden, self.intermediate, self.gated)


def _projections(hidden: int, width: int, gated: bool) -> dict[str, tuple[int, int]]:
    gate = {GATE: (width, hidden)} if gated else {}
    return {**gate, UP: (width, hidden), DOWN: (hidden, width)}


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        headers: every tensor of the folder.
        layers: name of a wanted layer -> its tensors.
        problems: all of them, one for many tensors of which the same is to be said.
        notes: sentences about what was not looked at.
    """

    headers: Headers
    layers: dict[str, LayerTensors] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def survey(
    headers: Headers,
    wanted: Sequence[Wanted],
    section: Mapping[str, Any] | None = None,
    description: tuple[str, Mapping[str, Any]] = ("", {}),
) -> Survey:
    """Compare a folder with what config.json asks for.

    Args:
        headers: of the folder.
        wanted: the layers that will be loaded.
        section: its quantization_config.
        description: msModelSlim's file, its name and its content; empty without one.
    """
    found = Survey(headers, problems=list(headers.problems))
    layers = Layers(headers.entries.values())
    any_style = any(layer.style for root in layers.by_root.values() for layer in root.values())
    problems: list[Problem] = []
    for want in wanted:
        tensors = layers.find(want.name, want.ids)
        if tensors is None and not want.required:
            found.notes.append(f"{want.name}: no file holds this draft layer.")
        elif tensors is None and any_style:
            got, expected = "has no tensor in any file", f"{want.experts} experts"
            problems.append(Problem(CONFIG, want.name, got, expected, _fits_config()))
        elif tensors is None or not tensors.style:
            found.notes.append(f"{want.name}: its experts' names are not known here, so they were not looked at.")
        else:
            found.layers[want.name] = tensors
            problems += _Layer(want, tensors, section, description[0] or CONFIG).problems()
    told = {name for problem in problems for name in (problem.tensor, *problem.alike)}
    absent = _described_but_absent(headers, description, found.layers.values())
    problems += [problem for problem in absent if problem.tensor not in told]
    found.problems += _together(problems)
    return found


def _fits_config() -> str:
    return "Is config.json that of this checkpoint? If so, fetch the missing files."


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's comparison."""

    want: Wanted
    tensors: LayerTensors
    section: Mapping[str, Any] | None
    said_by: str

    def problems(self) -> Iterator[Problem]:
        for entry in self.tensors.others:
            yield self._left_over(entry)
        if self.tensors.style == "per expert":
            yield from self._per_expert()
        elif self.tensors.style == "per projection":
            yield from self._per_projection()
        else:
            yield from self._fused()
        if isinstance(self.want.form, Mixed):
            yield from self._mixed(self.want.form)
        if self.want.shared is not None and self.tensors.shared:
            hidden, width, form = self.want.shared
            yield from self._one(None, self.tensors.shared, _projections(hidden, width, True), form)

    def _mixed(self, form: Mixed) -> Iterator[Problem]:
        (first, one), *others = form.parts
        for other, place in others:
            number, _, projection = place.rpartition(".")
            prefix = self.tensors.prefix_of(int(number), projection) if number.isdigit() else place
            entry = next((e for e in self.tensors.routed if e.name.startswith(f"{prefix}.")), None)
            got = f"is {other}{f' in {entry.file}' if entry else ''}, and {one} is {first}"
            yield Problem(self.said_by, f"{prefix}.*", got, "one format for all experts of a layer", _ALIKE)

    def _parts_of(self, form: ExpertsFormat) -> tuple[Part, ...] | None:
        if not isinstance(form, Known):
            return None
        try:
            return stored_of(form.name, self.section).parts
        except CheckpointError:
            return None  # a format that the plan refuses by name

    def _per_expert(self) -> Iterator[Problem]:
        want, experts = self.want, self.tensors.experts
        for number in range(want.experts):
            if number in experts:
                yield from self._one(number, experts[number], want.projections, want.form)
            else:
                every = tuple(f"{self.tensors.prefix_of(number, name)}.*" for name in want.projections)
                got, expected = "is in no file", f"experts 0 to {want.experts - 1}"
                yield Problem(CONFIG, every[0], got, expected, _fits_config(), every[1:])
        for number in sorted(set(experts) - set(range(want.experts))):
            yield from map(self._left_over, (entry for parts in experts[number].values() for entry in parts.values()))

    def _one(
        self, expert: int | None, found: Mapping[str, Parts], sizes: Mapping[str, tuple[int, int]], form: ExpertsFormat
    ) -> Iterator[Problem]:
        """One expert, or the shared one."""
        known = self._parts_of(form)
        files = sorted({entry.file for parts in found.values() for entry in parts.values()})
        for projection, size in sizes.items():
            prefix, parts = self.tensors.prefix_of(expert, projection), found.get(projection, {})
            if known is not None:
                yield from self._projection(prefix, parts, known, size, (), form, files)
        for projection in set(found) - set(sizes):
            yield from map(self._left_over, found[projection].values())

    def _projection(
        self,
        prefix: str,
        parts: Parts,
        known: tuple[Part, ...],
        size: tuple[int, int],
        lead: tuple[int, ...],
        form: ExpertsFormat,
        files: Sequence[str],
    ) -> Iterator[Problem]:
        names = {part.name for part in known}
        as_format = f"for {form} ({self.said_by})"
        for part in known:
            entry = parts.get(part.name)
            if entry is None:
                if part.required:
                    got = f"is missing beside its expert in {' and '.join(files[:3])}"
                    yield Problem(_file(files), f"{prefix}.{part.name}", got, f"it {as_format}", COPY)
                continue
            shapes = tuple((*lead, *shape) for shape in part.shapes(*size))
            words = [_WORDS[dtype] for dtype in part.dtypes]
            if entry.dtype not in words:
                expected = f"{' or '.join(words)} {as_format}"
                remedy = f"{COPY[:-1]}, or correct {self.said_by}."
                yield Problem(entry.file, entry.name, f"has dtype {entry.dtype}", expected, remedy)
            elif not fits(entry.shape, shapes):
                expected = f"{shapes_text(shapes)} {as_format}"
                remedy = f"Is {self.said_by} that of this checkpoint?"
                yield Problem(entry.file, entry.name, f"has shape {list(entry.shape)}", expected, remedy)
        yield from (self._left_over(entry) for name, entry in parts.items() if name not in names)

    def _per_projection(self) -> Iterator[Problem]:
        known = self._parts_of(self.want.form)
        files = sorted({entry.file for parts in self.tensors.stacked.values() for entry in parts.values()})
        for projection, size in self.want.projections.items():
            if known is not None:
                prefix, parts = self.tensors.prefix_of(None, projection), self.tensors.stacked.get(projection, {})
                lead = (self.want.experts,)
                yield from self._projection(prefix, parts, known, size, lead, self.want.form, files)

    def _fused(self) -> Iterator[Problem]:
        """Halves, transposed or interleaved: the numbers of rows tell, which of them it is the model's class does."""
        want, fused = self.want, self.tensors.fused
        files = sorted({entry.file for entry in fused.values()})
        width = 2 * want.intermediate if want.gated else want.intermediate
        sizes = {"gate_up_proj": (width, want.hidden), "down_proj": (want.hidden, want.intermediate)}
        blocks = want.form.name == "gpt-oss-mxfp4"
        for projection in sizes:
            names = [projection + part for part in (("_blocks", "_scales") if blocks else ("",))]
            if not blocks and f"{projection}.weight" in fused:
                names = [f"{projection}.weight"]
            for name in names:
                if name not in fused:
                    got = f"is missing beside {' and '.join(files[:3])}"
                    yield Problem(
                        _file(files), f"{self.tensors.block}.experts.{name}", got, f"it for {want.form}", COPY
                    )
        for name, entry in fused.items():
            split = FUSED_PARTS.match(name)
            if split is None:
                continue
            rows, columns = sizes[split["projection"]]
            yield from self._fused_one(entry, split["part"], rows, columns)

    def _fused_one(self, entry: Entry, part: str, rows: int, columns: int) -> Iterator[Problem]:
        experts, form = self.want.experts, self.want.form
        shapes: tuple[tuple[int, ...], ...] = ()
        words = ["BF16", "F16", "F32"]
        if part == "_bias":
            if not self.want.has_bias:
                yield self._left_over(entry)
            shapes = ((experts, rows),)
        elif form.name == "gpt-oss-mxfp4":
            words = ["U8"]
            scales = (experts, rows, columns // 32)
            shapes = ((*scales, 16) if part == "_blocks" else scales,)
        elif form.name == "bf16" and part in ("", ".weight"):
            shapes = ((experts, rows, columns), (experts, columns, rows))
        elif form.name == "bf16":
            yield self._left_over(entry)
        else:
            words = []
        if words and entry.dtype not in words:
            expected = f"{' or '.join(words)} for {form} ({self.said_by})"
            yield Problem(entry.file, entry.name, f"has dtype {entry.dtype}", expected, COPY)
        elif not fits(entry.shape, shapes) or entry.shape[:1] != (experts,):
            expected = shapes_text(shapes) or f"{experts} experts in the first dimension"
            yield Problem(entry.file, entry.name, f"has shape {list(entry.shape)}", expected, _fits_config())

    def _left_over(self, entry: Entry) -> Problem:
        expected = f"the tensors of {self.want.experts} experts in {self.want.form} ({CONFIG}, {self.said_by})"
        remedy = f"{COPY[:-1]}, or correct its description."
        return Problem(entry.file, entry.name, "is left over", expected, remedy)


def _file(files: Sequence[str]) -> str:
    return files[0] if files else CONFIG


def _described_but_absent(
    headers: Headers, description: tuple[str, Mapping[str, Any]], layers: Iterable[LayerTensors]
) -> Iterator[Problem]:
    """Tensors of experts that msModelSlim's description lists and no file holds; of other modules vLLM judges."""
    name, content = description
    blocks = tuple(f"{layer.block}.experts." for layer in layers)
    for tensor, kind in content.items():
        if tensor.startswith(blocks or ("\0",)) and isinstance(kind, str) and tensor not in headers.entries:
            yield Problem(
                name, tensor, f"is listed as {kind}, but no file holds it", "a list of the files' tensors", COPY
            )


def _together(problems: Iterable[Problem]) -> Iterator[Problem]:
    """One problem for all tensors of which the same is to be said."""
    first: dict[tuple[str, ...], Problem] = {}
    alike: dict[tuple[str, ...], list[str]] = {}
    for problem in problems:
        last = problem.tensor.rpartition(".")[2]
        key = (
            problem.file,
            problem.got,
            problem.expected,
            problem.remedy,
            last if problem.got == "is left over" else "",
        )
        if key in first:
            alike[key] += [problem.tensor, *problem.alike]
        else:
            first[key], alike[key] = problem, list(problem.alike)
    return (replace(problem, alike=tuple(alike[key])) for key, problem in first.items())
