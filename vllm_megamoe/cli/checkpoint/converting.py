"""A checkpoint in the package's own format: experts converted one by one, all else kept byte for byte.

The folder gets config.json and the index last, so a conversion that was ended is no checkpoint; a journal beside them
lets the same command go on where it ended.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from vllm_megamoe.checkpoint.formats import OWN_METHOD
from vllm_megamoe.checkpoint.headers import Entry
from vllm_megamoe.checkpoint.index import INDEX
from vllm_megamoe.checkpoint.own import VERSION, OwnLayer
from vllm_megamoe.checkpoint.recognise import SECTION_KEYS, is_own, section_of, source_section
from vllm_megamoe.checkpoint.writing import Declared, pieces_of, write_atomically, write_file
from vllm_megamoe.cli.checkpoint.convert_layer import Choices, Job, check_shared, jobs_of, write_experts
from vllm_megamoe.cli.checkpoint.journal import JOURNAL, Journal, Written
from vllm_megamoe.cli.checkpoint.opened import Opened, plans_of, progress
from vllm_megamoe.cli.checkpoint.schema import ConvertedLayer, ConvertReport
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.experts.operands import KINDS
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options

CONFIG = "config.json"
_LEFT_BEHIND = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
"""Ends of names that hold or list weights: these are written anew, or are another copy of them."""


def convert(opened: Opened, target: Path, options: Options, choices: Choices) -> ConvertReport:
    """Convert the layers that were asked for.

    Args:
        opened: the source.
        target: a new folder, or that of the same conversion that was ended.
        options: use case and profile; consent is given by naming the use case.
        choices: what else was asked for.

    Raises:
        ConfigError: a layer cannot become the use case, or the folder cannot be used.
        CheckpointError: a tensor of the source is not what its format says, or nothing can be written.
    """
    if target.resolve() == opened.folder.resolve():
        raise ConfigError(f"{target}: the source itself; expected another folder.")
    plans = plans_of(opened.layers, options)
    for layer in opened.layers:
        choices.check(layer)
        if choices.shared is not None:
            check_shared(layer, choices.shared, plans[layer.name], options)
    jobs = {layer.name: tuple(jobs_of(layer, opened.stored(layer), choices)) for layer in opened.layers}
    if choices.shared is not None and not any(job.experts is None for of in jobs.values() for job in of):
        raise ConfigError("--shared: no layer has shared experts in its files; expected some. Leave it out.")
    moved = {entry.name for layer in opened.layers for entry in _moved(opened, layer, choices)}
    journal = Journal.open(target, _identity(opened, options, choices))
    _room(opened, plans, moved, journal)
    journal.save()
    done: list[ConvertedLayer] = []
    for layer in opened.layers:
        before = [job.file for job in jobs[layer.name] if journal.has(job.file)]
        for job in jobs[layer.name]:
            try:
                write_experts(job, layer, plans[layer.name], opened.stored(layer), choices, journal)
            except KeyboardInterrupt:
                there = f"{target} has {len(journal.files)} of {sum(map(len, jobs.values()))} files of experts"
                raise KeyboardInterrupt(f"{there}, the same command goes on from there") from None
        done += [_told(layer, of, journal, before) for of in _by_block(jobs[layer.name])]
    _keep(opened, moved, journal)
    _copy_beside(opened.folder, target)
    total = sum(written.bytes for written in journal.files.values())
    where = {name: file for file, written in journal.files.items() for name in written.tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_atomically(target / INDEX, [json.dumps(index, indent=2).encode()])
    write_atomically(target / CONFIG, [json.dumps(_config(opened, jobs, journal), indent=2).encode()])
    journal.close()
    return ConvertReport(source=opened.model.name, target=str(target), bytes=total, layers=tuple(done))


def _moved(opened: Opened, layer: MoeFacts, choices: Choices) -> Iterator[Entry]:
    """The tensors of the source that are written anew."""
    tensors = opened.survey.layers[layer.name]
    yield from tensors.routed
    if choices.shared is not None:
        yield from (entry for parts in tensors.shared.values() for entry in parts.values())


def _identity(opened: Opened, options: Options, choices: Choices) -> str:
    """Of the source's files and of what was asked for."""
    entries = sorted(opened.survey.headers.entries.values())
    said = [opened.files.config, opened.files.side_files, entries, [layer.name for layer in opened.layers]]
    said += [options.model_dump(include={"use_case", "profile"}), asdict(choices)]
    return hashlib.blake2b(json.dumps(said, default=str).encode(), digest_size=16).hexdigest()


def _room(opened: Opened, plans: Mapping[str, LayerPlan], moved: set[str], journal: Journal) -> None:
    """Raise ConfigError where the disk has no place for what is still to be written."""
    needed = sum(entry.nbytes for entry in opened.survey.headers.entries.values() if entry.name not in moved)
    for layer in opened.layers:
        plan = plans[layer.name]
        sizes = plan.padding
        own = OwnLayer(plan.use_case, KINDS[plan.use_case][0], sizes.hidden, sizes.intermediate_hidden)
        needed += layer.num_experts * sum(tensor.nbytes for tensor in own.tensors.values())
    needed -= sum(written.bytes for name, written in journal.files.items() if journal.has(name))
    free = shutil.disk_usage(journal.folder).free
    if needed > free:
        raise ConfigError(f"{journal.folder}: {free} bytes are free; expected at least {needed}. Make room.")


def _by_block(jobs: Sequence[Job]) -> list[list[Job]]:
    """The files of routed experts, and the one of shared ones."""
    return [list(found) for _, found in groupby(jobs, key=lambda job: job.block)]


def _told(layer: MoeFacts, jobs: Sequence[Job], journal: Journal, before: Sequence[str]) -> ConvertedLayer:
    written, files = [journal.files[job.file] for job in jobs], tuple(job.file for job in jobs)
    entries = [one.entry or {} for one in written]
    if any(entry != entries[0] for entry in entries):
        kinds = ", ".join(str(entry.get("element")) for entry in entries)
        raise CheckpointError(
            f"{layer.name}: its experts become {kinds}; expected one kind for a layer. Name another use case."
        )
    size = math.fsum(one.size for one in written)
    shared = jobs[0].experts is None
    return ConvertedLayer(
        name=jobs[0].block if shared else layer.name,
        part="shared" if shared else "routed",
        layer=layer.index,
        draft=layer.draft,
        format=entries[0]["source"],
        use_case=entries[0]["use_case"],
        hidden=layer.shared.hidden if shared and layer.shared else entries[0]["hidden"],
        intermediate_hidden=layer.shared.intermediate_hidden
        if shared and layer.shared
        else entries[0]["intermediate_hidden"],
        weight_rel_err=math.sqrt(math.fsum(one.off for one in written) / max(size, 1e-30)),
        bytes=sum(one.bytes for one in written),
        file=files[0],
        files=files,
        resumed=set(files) <= set(before),
    )


def _keep(opened: Opened, moved: set[str], journal: Journal) -> None:
    """All tensors that are not written anew, under their files' names."""
    by_file: dict[str, list[Entry]] = {}
    for entry in opened.survey.headers.entries.values():
        if entry.name not in moved:
            by_file.setdefault(entry.file, []).append(entry)
    for file, entries in progress(by_file.items(), len(by_file), "all else"):
        if not journal.has(file):
            declared = [Declared(entry.name, entry.dtype, entry.shape, entry.nbytes) for entry in entries]
            source = opened.folder / file
            pieces = (piece for entry in entries for piece in pieces_of(source, entry.begin, entry.end))
            write_file(journal.folder / file, declared, pieces)
            names, held = tuple(one.name for one in declared), sum(one.nbytes for one in declared)
            journal.add(file, Written(names, bytes=held))


def _copy_beside(source: Path, target: Path) -> None:
    """Tokenizer, templates, descriptions: every file of the folder that holds no weights."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name not in (CONFIG, JOURNAL) and not file.name.endswith(_LEFT_BEHIND):
            write_atomically(target / file.name, pieces_of(file))


def _config(opened: Opened, jobs: Mapping[str, Sequence[Job]], journal: Journal) -> dict[str, Any]:
    """config.json as it was, with this format's section in the place of the source's."""

    def without(part: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in part.items() if key not in SECTION_KEYS}
        return {key: without(v) if key.endswith("_config") and isinstance(v, Mapping) else v for key, v in kept.items()}

    section = section_of(opened.files.config)
    before = section if section is not None and is_own(section) else {}
    every = [job for of in jobs.values() for job in of]
    layers = {job.block: journal.files[job.file].entry for job in every if job.experts is not None}
    shared = {job.block: journal.files[job.file].entry for job in every if job.experts is None}
    shared = {**(before.get("shared") or {}), **shared}
    return {
        **without(opened.files.config),
        SECTION_KEYS[0]: {
            "quant_method": OWN_METHOD,
            "version": VERSION,
            "layers": {**(before.get("layers") or {}), **layers},
            **({"shared": shared} if shared else {}),
            "source": source_section(section),
        },
    }
