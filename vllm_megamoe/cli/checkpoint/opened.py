"""A checkpoint for a command that looks at weights: config, survey of its files, the layers that were asked for."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vllm_megamoe.checkpoint.reading import Files, StoredLayer
from vllm_megamoe.checkpoint.recognise import section_of
from vllm_megamoe.checkpoint.survey import Survey
from vllm_megamoe.cli.model import Model, ModelFiles, find_path, read_facts, read_files
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.folder import expected_layer, survey_folder
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.model import Speculation
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_of, violations_of

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Opened:
    """One checkpoint.

    Attributes:
        folder: of the checkpoint.
        files: its config files.
        model: what they say, draft layers included.
        layers: those that were asked for and that a file holds.
        survey: of these layers.
        weights: its files, to read from.
    """

    folder: Path
    files: ModelFiles
    model: Model
    layers: tuple[MoeFacts, ...]
    survey: Survey
    weights: Files

    def stored(self, layer: MoeFacts) -> StoredLayer:
        """A layer's experts on disk."""
        expected = expected_layer(layer, self.model.facts.num_layers)
        section, architecture = section_of(self.files.config), self.model.facts.architecture
        tensors = self.survey.layers[layer.name]
        return StoredLayer(self.weights, expected, tensors, section, architecture, layer.gate_up_interleaved)


def open_checkpoint(text: str, layers: str | None = None) -> Opened:
    """Read config files and headers.

    Args:
        text: a checkpoint's folder.
        layers: numbers as `0-3,7`, None for all.

    Raises:
        ConfigError: no folder, no config, no experts, or no such layer.
        CheckpointError: the folder cannot be read.
    """
    folder = find_path(text)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{text}: a file; expected the folder of a checkpoint, with config.json and its weights.")
    files = read_files(text)
    assert folder is not None
    model = read_facts(files, Speculation("mtp"))
    if not model.layers:
        raise ConfigError(
            f"{text}: no layer with experts ({model.facts.architecture or 'no architecture is named'}); expected a MoE "
            "model. Is this the checkpoint that you meant?"
        )
    asked = _asked(layers, model.layers)
    survey = survey_folder(folder, files.config, files.side_files, asked, model.facts.num_layers)
    there = tuple(layer for layer in asked if layer.name in survey.layers)
    return Opened(folder, files, model, there, survey, Files(folder))


def _asked(text: str | None, layers: Iterable[MoeFacts]) -> tuple[MoeFacts, ...]:
    layers = tuple(layers)
    if text is None:
        return layers
    numbers: set[int] = set()
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece.strip())
        if found is None:
            raise ConfigError(f"--layers {text!r}; expected numbers and ranges with commas, such as 0-3,7.")
        numbers.update(range(int(found[1]), min(int(found[2] or found[1]), 1_000_000) + 1))
    chosen = tuple(layer for layer in layers if layer.index in numbers)
    if not chosen:
        known = ", ".join(str(layer.index) for layer in (layers[0], layers[-1]))
        raise ConfigError(f"--layers {text}: none of them has experts; expected numbers such as {known}.")
    return chosen


def plans_of(layers: tuple[MoeFacts, ...], options: Options) -> Mapping[str, LayerPlan]:
    """How each layer runs; padding, sizes and ranks of an engine are nobody's business here.

    Raises:
        ConfigError: with every rule about formats and use cases that stands in the way.
    """
    engine = EngineFacts("bfloat16")
    found: dict[str, LayerPlan] = {}
    wrong: list[str] = []
    for group in ([layer for layer in layers if not layer.draft], *([layer] for layer in layers if layer.draft)):
        verdict = draft_plan(engine, group, options)
        planned = {plan.facts.name: plan for plan in plan_of(verdict).layers}
        found |= planned
        lost = {layer.name for layer in group} - set(planned)
        wrong += [
            f"{v.where}: {v.got}; expected {v.expected}. {v.remedy}"
            for v in violations_of(verdict)
            if v.where in (*lost, "use_case") or (lost and v.where == "profile")
        ]
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))
    return found


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, and on a terminal a bar on standard error while they are gone through."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)
