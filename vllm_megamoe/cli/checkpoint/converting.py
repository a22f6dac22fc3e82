"""A checkpoint in the package's own format: experts converted one by one, all else kept byte for byte.

The folder gets config.json and the index last, so a conversion that was ended is no checkpoint; a journal beside them
lets the same command go on where it ended.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vllm_megamoe.checkpoint.explained import EXACT, conversion_steps
from vllm_megamoe.checkpoint.formats import OWN_METHOD
from vllm_megamoe.checkpoint.headers import Entry
from vllm_megamoe.checkpoint.index import INDEX
from vllm_megamoe.checkpoint.own import PARTS, VERSION, OwnLayer
from vllm_megamoe.checkpoint.recognise import SECTION_KEYS, section_of
from vllm_megamoe.checkpoint.writing import Declared, ahead, data_of, pieces_of, write_atomically, write_file
from vllm_megamoe.cli.checkpoint.opened import Opened, plans_of, progress
from vllm_megamoe.cli.checkpoint.run_expert import weights_of
from vllm_megamoe.cli.checkpoint.schema import ConvertedLayer, ConvertReport
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.experts.canonical import Experts, MxExperts
from vllm_megamoe.experts.convert import fitted
from vllm_megamoe.experts.operands import KINDS, to_operands
from vllm_megamoe.experts.steps import to_mx
from vllm_megamoe.numerics.mx import EMAX, MxScale
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options

JOURNAL = "megamoe-convert.json"
CONFIG = "config.json"
_LEFT_BEHIND = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
"""Ends of names that hold or list weights: these are written anew, or are another copy of them."""


@dataclass(slots=True)
class Journal:
    """What a conversion has finished.

    Attributes:
        place: of its file.
        of: what identifies source and options; another conversion's folder is not touched.
        files: name -> digest of those that were written and read again.
        layers: experts' name -> the entry and the loss of those that are done.
    """

    place: Path
    of: str
    files: dict[str, str] = field(default_factory=dict)
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, of: str) -> "Journal":
        """The one that lies in a folder, or a new one for an empty folder.

        Raises:
            ConfigError: the folder holds something else.
        """
        place = folder / JOURNAL
        if place.is_file():
            try:
                found = json.loads(place.read_text(encoding="utf-8"))
                journal = cls(place, found["of"], dict(found["files"]), dict(found["layers"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{place}: no journal of a conversion ({error}). Delete the folder.") from error
            if journal.of != of:
                raise ConfigError(
                    f"{folder}: holds a conversion of another source or with other options; expected this one's, or an "
                    "empty folder. Name another folder, or delete it."
                )
            return journal
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder}: not empty; expected a new folder, or that of a conversion to go on with.")
        return cls(place, of)

    def save(self) -> None:
        """Under its name at once or not at all."""
        content = {"of": self.of, "files": self.files, "layers": self.layers}
        write_atomically(self.place, [json.dumps(content, indent=1).encode()])

    def has(self, file: Path) -> bool:
        """Whether a file was finished, and is there."""
        return file.name in self.files and file.is_file()


def convert(opened: Opened, target: Path, options: Options, mx_scale: MxScale = "floor") -> ConvertReport:
    """Convert the layers that were asked for.

    Args:
        opened: the source.
        target: a new folder, or that of the same conversion that was ended.
        options: use case and profile; consent is given by naming the use case.
        mx_scale: how weights that are no MX yet get their scales.

    Raises:
        ConfigError: a layer cannot become the use case, or the folder cannot be used.
        CheckpointError: a tensor of the source is not what its format says, or nothing can be written.
    """
    if target.resolve() == opened.folder.resolve():
        raise ConfigError(f"{target}: the source itself; expected another folder.")
    plans = plans_of(opened.layers, options)
    _room(opened, target)
    journal = Journal.open(target, _identity(opened, options, mx_scale))
    journal.save()
    done = [_layer(opened, layer, plans[layer.name], mx_scale, target, journal) for layer in opened.layers]
    moved = {entry.name for layer in opened.layers for entry in opened.survey.layers[layer.name].routed}
    where = {name: file for layer in journal.layers.values() for name, file in layer["where"].items()}
    where |= _keep(opened, moved, target, journal)
    _copy_beside(opened.folder, target)
    total = sum(entry.nbytes for entry in opened.survey.headers.entries.values() if entry.name not in moved)
    total += sum(layer.bytes for layer in done)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_atomically(target / INDEX, [json.dumps(index, indent=2).encode()])
    write_atomically(target / CONFIG, [json.dumps(_config(opened, journal), indent=2).encode()])
    journal.place.unlink()
    return ConvertReport(source=opened.model.name, target=str(target), bytes=total, layers=tuple(done))


def _identity(opened: Opened, options: Options, mx_scale: MxScale) -> str:
    """Of the source's files and of what was asked for."""
    entries = sorted(opened.survey.headers.entries.values())
    said = [opened.files.config, opened.files.side_files, entries, [layer.name for layer in opened.layers]]
    said += [options.model_dump(include={"use_case", "profile"}), mx_scale]
    return hashlib.blake2b(json.dumps(said, default=str).encode(), digest_size=16).hexdigest()


def _room(opened: Opened, target: Path) -> None:
    there = next(folder for folder in (target, *target.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    kept = sum(entry.nbytes for entry in opened.survey.headers.entries.values())
    moved = sum(e.nbytes for layer in opened.layers for e in opened.survey.layers[layer.name].routed)
    if kept - moved > free:
        raise ConfigError(f"{target}: {free} bytes are free; expected at least {kept - moved}. Make room.")


def _layer(
    opened: Opened, layer: MoeFacts, plan: LayerPlan, mx_scale: MxScale, target: Path, journal: Journal
) -> ConvertedLayer:
    """One file with all experts of a layer."""
    stored = opened.stored(layer)
    block = f"{stored.tensors.block}.experts"
    place = target / f"megamoe-experts-{layer.index:05}{'-draft' if layer.draft else ''}.safetensors"
    resumed = journal.has(place) and block in journal.layers
    if not resumed:
        first = _converted(stored.expert(0), plan, mx_scale)
        own = OwnLayer(plan.use_case, first.kind, first.hidden, first.intermediate, layer.experts_format.name)
        names = [
            (f"{block}.{number}.{_spelt(stored.tensors.spelling, PARTS[name][0])}.{PARTS[name][1]}", name)
            for number in range(layer.num_experts)
            for name in own.tensors
        ]
        loss = _Loss()
        declared = [Declared.of(full, own.tensors[name]) for full, name in names]
        pieces = (piece for expert in ahead(_pieces(opened, layer, plan, mx_scale, own, loss)) for piece in expert)
        journal.files[place.name] = write_file(place, declared, pieces)
        journal.layers[block] = {
            "entry": own.entry(),
            "where": {full: place.name for full, _ in names},
            "loss": loss.value,
            "bytes": sum(one.nbytes for one in declared),
        }
        journal.save()
    told = journal.layers[block]
    return ConvertedLayer(
        name=layer.name,
        layer=layer.index,
        draft=layer.draft,
        format=layer.experts_format.name,
        use_case=told["entry"]["use_case"],
        hidden=told["entry"]["hidden"],
        intermediate_hidden=told["entry"]["intermediate_hidden"],
        weight_rel_err=told["loss"],
        bytes=told["bytes"],
        file=place.name,
        resumed=resumed,
    )


def _converted(experts: Experts, plan: LayerPlan, mx_scale: MxScale) -> Experts:
    """One expert in the use case's kind, padded as planned."""
    kind = KINDS[plan.use_case][0]
    elem = next((elem for elem in EMAX if elem == kind), None)
    if mx_scale == "ceil" and elem is not None and not isinstance(experts, MxExperts):
        experts = to_mx(elem, "ceil")(experts)
    sizes = plan.padding.hidden, plan.padding.intermediate_hidden
    return fitted(experts, plan.use_case, *sizes, torch.bfloat16)


def _spelt(spelling: Mapping[str, str], projection: str) -> str:
    """As the family calls it: vLLM's loaders of Mixtral look for w1."""
    return spelling.get(projection, projection)


@dataclass(slots=True)
class _Loss:
    """Sums of squares of what the conversion takes from the weights."""

    off: float = 0.0
    size: float = 0.0

    @property
    def value(self) -> float:
        """rms over rms."""
        return math.sqrt(self.off / max(self.size, 1e-30))


def _pieces(
    opened: Opened, layer: MoeFacts, plan: LayerPlan, mx_scale: MxScale, own: OwnLayer, loss: _Loss
) -> Iterator[list[Any]]:
    """The bytes of each expert, looked at as a loader will read them."""
    stored = opened.stored(layer)
    for number in progress(range(layer.num_experts), layer.num_experts, f"layer {layer.index}"):
        experts = stored.expert(number)
        target = _converted(experts, plan, mx_scale)
        if target.kind != own.element:
            raise CheckpointError(
                f"{layer.name}.{number} becomes {target.kind}, expert 0 {own.element}; expected one kind for a layer. "
                "Name another use case."
            )
        (operands,) = to_operands(target, plan.use_case)
        tensors = own.tensors_of(operands)
        back = own.experts_of(tensors, layer.hidden, layer.intermediate_hidden, f"{layer.name}.{number}")
        before, after = weights_of(experts), weights_of(back)
        if conversion_steps(before, after, own.element, exact=not plan.loss) > EXACT:
            raise CheckpointError(
                f"{layer.name}.{number}: its operands mean other numbers than the source; expected at most a step of "
                f"{plan.use_case}. Report this with the name of the checkpoint."
            )
        loss.off += sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True))
        loss.size += sum(float(b.square().sum()) for b in before)
        yield [data_of(tensors[name]) for name in own.tensors]


def _keep(opened: Opened, moved: set[str], target: Path, journal: Journal) -> dict[str, str]:
    """All tensors that are not experts' of a converted layer, under their files' names; tensor -> file."""
    by_file: dict[str, list[Entry]] = {}
    for entry in opened.survey.headers.entries.values():
        if entry.name not in moved:
            by_file.setdefault(entry.file, []).append(entry)
    for file, entries in progress(by_file.items(), len(by_file), "all else"):
        if not journal.has(target / file):
            declared = [Declared(entry.name, entry.dtype, entry.shape, entry.nbytes) for entry in entries]
            source = opened.folder / file
            pieces = (piece for entry in entries for piece in pieces_of(source, entry.begin, entry.end))
            journal.files[file] = write_file(target / file, declared, pieces)
            journal.save()
    return {entry.name: entry.file for entries in by_file.values() for entry in entries}


def _copy_beside(source: Path, target: Path) -> None:
    """Tokenizer, templates, descriptions: every file of the folder that holds no weights."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name not in (CONFIG, JOURNAL) and not file.name.endswith(_LEFT_BEHIND):
            write_atomically(target / file.name, pieces_of(file))


def _config(opened: Opened, journal: Journal) -> dict[str, Any]:
    """config.json as it was, with this format's section in the place of the source's."""

    def without(part: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in part.items() if key not in SECTION_KEYS}
        return {key: without(v) if key.endswith("_config") and isinstance(v, Mapping) else v for key, v in kept.items()}

    section = section_of(opened.files.config)
    return {
        **without(opened.files.config),
        SECTION_KEYS[0]: {
            "quant_method": OWN_METHOD,
            "version": VERSION,
            "layers": {block: told["entry"] for block, told in journal.layers.items()},
            "source": section,
        },
    }
