"""One layer's tensors against what config.json and the experts' format ask of them, from headers alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_megamoe.checkpoint.formats import OWN_PREFIX, ExpertsFormat, Known, Mixed
from vllm_megamoe.checkpoint.headers import DTYPES, Entry
from vllm_megamoe.checkpoint.layers import DOWN, FUSED_PARTS, GATE, UP, LayerId, LayerTensors, Parts
from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.problem import COPY, Problem
from vllm_megamoe.checkpoint.recognise import source_section
from vllm_megamoe.checkpoint.stored.part import Part, fits, shapes_text
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.errors import CheckpointError

CONFIG = "config.json"
FITS_CONFIG = "Is config.json that of this checkpoint? If so, fetch the missing files."
_MOST_PADDING = 16
"""Times a model's size that operands may have: no product pads further, and a layer of that size is made to compare."""
_ALIKE = "Correct the description, or quantise these experts alike."
_WORDS = {dtype: word for word, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ExpectedLayer:
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One layer's comparison."""

    layer: ExpectedLayer
    tensors: LayerTensors
    section: Mapping[str, Any] | None
    said_by: str

    def problems(self) -> Iterator[Problem]:
        for entry in self.tensors.others:
            yield self._left_over(entry)
        if self.layer.form.name.startswith(OWN_PREFIX):
            yield from self._own()
        elif self.tensors.style == "per expert":
            yield from self._per_expert()
        elif self.tensors.style == "per projection":
            yield from self._per_projection()
        else:
            yield from self._fused()
        if isinstance(self.layer.form, Mixed):
            yield from self._mixed(self.layer.form)
        if self.layer.shared is not None and self.tensors.shared.keys() == {GATE, UP, DOWN}:
            hidden, width, form = self.layer.shared  # with other projections its family has a naming of its own
            yield from self._one(None, self.tensors.shared, _projections(hidden, width, True), form)

    def _mixed(self, form: Mixed) -> Iterator[Problem]:
        (first, one), *others = form.parts
        for other, place in others:
            number, _, projection = place.rpartition(".")
            prefix = self.tensors.prefix_of(int(number), projection) if number.isdigit() else place
            entry = next((e for e in self.tensors.routed if e.name.startswith(f"{prefix}.")), None)
            got = f"is {other}{f' in {entry.file}' if entry else ''}, and {one} is {first}"
            yield Problem(self.said_by, f"{prefix}.*", got, "one format for all experts of a layer", _ALIKE)

    def _parts_of(self, form: ExpertsFormat, found: Mapping[str, Parts]) -> tuple[Part, ...] | None:
        if not isinstance(form, Known):
            return None
        try:
            return stored_of(form.name, source_section(self.section), next(iter(found.values()), {})).parts
        except CheckpointError:
            return None  # a format that the plan refuses by name

    def _per_expert(self) -> Iterator[Problem]:
        layer, experts = self.layer, self.tensors.experts
        for number in range(layer.experts):
            if number in experts:
                yield from self._one(number, experts[number], layer.projections, layer.form)
            else:
                every = tuple(f"{self.tensors.prefix_of(number, name)}.*" for name in layer.projections)
                got, expected = "is in no file", f"experts 0 to {layer.experts - 1}"
                yield Problem(CONFIG, every[0], got, expected, FITS_CONFIG, every[1:])
        for number in sorted(set(experts) - set(range(layer.experts))):
            yield from map(self._left_over, (entry for parts in experts[number].values() for entry in parts.values()))

    def _one(
        self, expert: int | None, found: Mapping[str, Parts], sizes: Mapping[str, tuple[int, int]], form: ExpertsFormat
    ) -> Iterator[Problem]:
        """One expert, or the shared one."""
        known = self._parts_of(form, found)
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

    def _own(self) -> Iterator[Problem]:
        """This package's own format: its operands' dtypes and shapes, byte for byte."""
        block = f"{self.tensors.block}.experts"
        own = OwnLayer.listed(self.section or {}, block)
        sizes = (own.hidden, self.layer.hidden), (own.intermediate_hidden, self.layer.intermediate)
        if not all(size <= padded <= _MOST_PADDING * size for padded, size in sizes):
            got = f"is listed with hidden {own.hidden} and intermediate_hidden {own.intermediate_hidden}"
            told = f"{self.layer.hidden} and {self.layer.intermediate}, or what they are padded to"
            yield Problem(CONFIG, block, got, told, "Convert the source again.")
            return
        expected = {PARTS[name]: tensor for name, tensor in own.tensors.items()}
        for number in range(self.layer.experts):
            found = self.tensors.experts.get(number, {})
            flat = {(name, part): entry for name, parts in found.items() for part, entry in parts.items()}
            for (projection, part), like in expected.items():
                entry = flat.pop((projection, part), None)
                word, name = _WORDS[like.dtype], f"{self.tensors.prefix_of(number, projection)}.{part}"
                text = f"{word} {list(like.shape)} for {self.layer.form}"
                if entry is None:
                    yield Problem(CONFIG, name, "is in no file", text, FITS_CONFIG)
                elif (entry.dtype, entry.shape) != (word, tuple(like.shape)):
                    yield Problem(entry.file, name, f"is {entry.dtype} {list(entry.shape)}", text, "Convert again.")
            yield from map(self._left_over, flat.values())

    def _per_projection(self) -> Iterator[Problem]:
        known = self._parts_of(self.layer.form, self.tensors.stacked)
        files = sorted({entry.file for parts in self.tensors.stacked.values() for entry in parts.values()})
        for projection, size in self.layer.projections.items():
            if known is not None:
                prefix, parts = self.tensors.prefix_of(None, projection), self.tensors.stacked.get(projection, {})
                lead = (self.layer.experts,)
                yield from self._projection(prefix, parts, known, size, lead, self.layer.form, files)

    def _fused(self) -> Iterator[Problem]:
        """Halves, transposed or interleaved: the numbers of rows tell, which of them it is the model's class does."""
        layer, fused = self.layer, self.tensors.fused
        files = sorted({entry.file for entry in fused.values()})
        width = 2 * layer.intermediate if layer.gated else layer.intermediate
        sizes = {"gate_up_proj": (width, layer.hidden), "down_proj": (layer.hidden, layer.intermediate)}
        blocks = layer.form.name == "gpt-oss-mxfp4"
        for projection in sizes:
            names = [projection + part for part in (("_blocks", "_scales") if blocks else ("",))]
            if not blocks and f"{projection}.weight" in fused:
                names = [f"{projection}.weight"]
            for name in names:
                if name not in fused:
                    got = f"is missing beside {' and '.join(files[:3])}"
                    yield Problem(
                        _file(files), f"{self.tensors.block}.experts.{name}", got, f"it for {layer.form}", COPY
                    )
        for name, entry in fused.items():
            split = FUSED_PARTS.match(name)
            if split is None:
                continue
            rows, columns = sizes[split["projection"]]
            yield from self._fused_one(entry, split["part"], rows, columns)

    def _fused_one(self, entry: Entry, part: str, rows: int, columns: int) -> Iterator[Problem]:
        experts, form = self.layer.experts, self.layer.form
        shapes: tuple[tuple[int, ...], ...] = ()
        words = ["BF16", "F16", "F32"]
        if part == "_bias":
            if not self.layer.has_bias:
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
            yield Problem(entry.file, entry.name, f"has shape {list(entry.shape)}", expected, FITS_CONFIG)

    def _left_over(self, entry: Entry) -> Problem:
        expected = f"the tensors of {self.layer.experts} experts in {self.layer.form} ({CONFIG}, {self.said_by})"
        remedy = f"{COPY[:-1]}, or correct its description."
        return Problem(entry.file, entry.name, "is left over", expected, remedy)


def _file(files: Sequence[str]) -> str:
    return files[0] if files else CONFIG
