"""Experts read from a folder's files one at a time, through the library's memory maps: for the command line.

Nothing is kept: the memory in use is one expert's. Which tensors belong to it the survey has found.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_megamoe.checkpoint.comparison import ExpectedLayer
from vllm_megamoe.checkpoint.formats import OWN_PREFIX
from vllm_megamoe.checkpoint.headers import Entry
from vllm_megamoe.checkpoint.layers import DOWN, GATE, UP, LayerTensors, Parts
from vllm_megamoe.checkpoint.own import PARTS, OwnLayer
from vllm_megamoe.checkpoint.problem import COPY
from vllm_megamoe.checkpoint.recognise import source_section
from vllm_megamoe.checkpoint.stored.matrix import Matrix, cut_expert, join_expert
from vllm_megamoe.checkpoint.stored.part import read_projection
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import Experts

TRANSPOSED = ("Llama4", "Qwen3VLMoe", "Aria", "GptOss")
"""Beginnings of architectures with fused tensors [E, H, 2I]; where H is 2I no shape tells (loaders of vLLM 0.32)."""


@dataclass(slots=True)
class Files:
    """The files of a folder, each mapped when it is first read.

    Attributes:
        folder: of the checkpoint.
    """

    folder: Path
    _open: dict[str, Any] = field(default_factory=dict)

    def tensor(self, entry: Entry) -> Tensor:
        """A whole tensor.

        Raises:
            CheckpointError: it cannot be read, with file and name.
        """
        with _named(entry):
            return self._handle(entry.file).get_tensor(entry.name)  # type: ignore[no-any-return]

    def row(self, entry: Entry, number: int) -> Tensor:
        """Expert `number` of a tensor [E, ...]; no byte of the others is read.

        Raises:
            CheckpointError: as `tensor`.
        """
        with _named(entry):
            return self._handle(entry.file).get_slice(entry.name)[number]  # type: ignore[no-any-return]

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(self.folder / file, framework="pt")
        return self._open[file]


@contextmanager
def _named(entry: Entry) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{entry.file}: {entry.name} cannot be read ({error}); expected a whole safetensors file. {COPY}"
        ) from error


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One layer's experts on disk.

    Attributes:
        files: of the folder.
        layer: what config.json asks for.
        tensors: which are theirs.
        section: quantization_config, which says how integers are packed.
        architecture: of the model.
        interleaved: whether gate and up rows of fused tensors alternate.
    """

    files: Files
    layer: ExpectedLayer
    tensors: LayerTensors
    section: Mapping[str, Any] | None
    architecture: str = ""
    interleaved: bool = False

    def expert(self, number: int) -> Experts:
        """One routed expert.

        Raises:
            CheckpointError: its tensors are not what the format says; with file, tensor and remedy.
        """
        if self.own is not None:
            return self.own.experts_of(*self._operands(number, self.own))
        gate, up, down = self.matrices(number).values()
        return join_expert(gate, up, down, f"{self.layer.name}.{number}")

    @property
    def own(self) -> OwnLayer | None:
        """The layer's entry where it is in this package's own format."""
        if not self.layer.form.name.startswith(OWN_PREFIX):
            return None
        return OwnLayer.listed(self.section or {}, f"{self.tensors.block}.experts")

    def _operands(self, number: int, own: OwnLayer) -> tuple[dict[str, Tensor], int, int, str]:
        projections = self.tensors.experts.get(number, {})
        entries = {field: projections.get(projection, {}).get(part) for field, (projection, part) in PARTS.items()}
        found = {field: self.files.tensor(entry) for field, entry in entries.items() if entry is not None}
        return found, self.layer.hidden, self.layer.intermediate, f"{self.tensors.block}.experts.{number}"

    def matrices(self, number: int) -> dict[str, Matrix]:
        """gate_proj, up_proj, down_proj of one routed expert.

        Raises:
            CheckpointError: as `expert`.
        """
        if self.own is not None:
            return dict(zip((GATE, UP, DOWN), cut_expert(self.expert(number)), strict=True))
        if self.tensors.style == "fused":
            return self._fused(number)
        found: dict[str, Matrix] = {}
        for projection, (rows, columns) in self.layer.projections.items():
            if self.tensors.style == "per projection":
                entries, where = self.tensors.stacked.get(projection, {}), self.tensors.prefix_of(None, projection)
                parts = {name: self.files.row(entry, number) for name, entry in entries.items()}
            else:
                entries = self.tensors.experts.get(number, {}).get(projection, {})
                parts = {name: self.files.tensor(entry) for name, entry in entries.items()}
                where = self.tensors.prefix_of(number, projection)
            found[projection] = self._read(self.layer.form.name, parts, (rows, columns), where, entries)
        return found

    def shared_matrices(self) -> dict[str, Matrix]:
        """Those of the shared expert, empty where the files have none.

        Raises:
            CheckpointError: as `expert`.
        """
        if self.layer.shared is None or not self.tensors.shared:
            return {}
        hidden, width, form = self.layer.shared
        found: dict[str, Matrix] = {}
        for projection, size in {GATE: (width, hidden), UP: (width, hidden), DOWN: (hidden, width)}.items():
            entries = self.tensors.shared.get(projection, {})
            parts = {name: self.files.tensor(entry) for name, entry in entries.items()}
            found[projection] = self._read(form.name, parts, size, self.tensors.prefix_of(None, projection), entries)
        return found

    def shared_expert(self) -> Experts:
        """The shared MLP as one expert of its width; only where `shared_matrices` has three.

        Raises:
            CheckpointError: as `expert`.
        """
        gate, up, down = self.shared_matrices().values()
        return join_expert(gate, up, down, self.tensors.shared_module)

    def _read(
        self, form: str, parts: Mapping[str, Tensor], size: tuple[int, int], where: str, entries: Parts
    ) -> Matrix:
        try:
            return read_projection(stored_of(form, source_section(self.section), parts), parts, *size, where)
        except CheckpointError as error:
            files = " and ".join(sorted({entry.file for entry in entries.values()})) or "no file"
            raise CheckpointError(f"{files}: {error}") from error

    def _fused(self, number: int) -> dict[str, Matrix]:
        name = "gate_up_proj" if "gate_up_proj" in self.tensors.fused else "gate_up_proj.weight"
        if name not in self.tensors.fused or name.replace("gate_up", "down") not in self.tensors.fused:
            raise CheckpointError(
                f"{self.layer.name}: {self.layer.form} experts in {', '.join(sorted(self.tensors.fused))}; expected "
                "gate_up_proj and down_proj in BF16. Use another checkpoint of this model."
            )
        gate_up = self._rows(self.tensors.fused[name], number, 2 * self.layer.intermediate, self.layer.hidden)
        down_entry = self.tensors.fused[name.replace("gate_up", "down")]
        down = self._rows(down_entry, number, self.layer.hidden, self.layer.intermediate)
        halves = (gate_up[0::2], gate_up[1::2]) if self.interleaved else gate_up.chunk(2)
        each = {GATE: halves[0], UP: halves[1], DOWN: down}
        where, entries = f"{self.tensors.block}.experts", self.tensors.fused
        sizes = self.layer.projections
        return {
            projection: self._read(self.layer.form.name, {"weight": w.contiguous()}, sizes[projection], where, entries)
            for projection, w in each.items()
        }

    def _rows(self, entry: Entry, number: int, rows: int, columns: int) -> Tensor:
        """[rows, columns] of an expert, whichever way it is stored."""
        transposed = entry.shape[1:] != (rows, columns)
        if rows == columns:
            transposed = self.architecture.startswith(TRANSPOSED)
        row = self.files.row(entry, number)
        return row.t() if transposed else row
