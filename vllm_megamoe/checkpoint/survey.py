"""A folder's tensors against config.json and the experts' format, from headers alone: malformed is said before loading.

Every layer, expert, projection and part is looked at. What is said is a contradiction between files, never a guess: a
layer whose names no naming explains is a note. Values (a scale of 0, a NaN) are looked at where tensors are read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_megamoe.checkpoint.comparison import CONFIG, FITS_CONFIG, Comparison, ExpectedLayer
from vllm_megamoe.checkpoint.formats import OWN_PREFIX
from vllm_megamoe.checkpoint.headers import Headers
from vllm_megamoe.checkpoint.layers import Layers, LayerTensors
from vllm_megamoe.checkpoint.problem import COPY, Problem


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        headers: every tensor of the folder.
        layers: name of an expected layer -> its tensors.
        problems: all of them, one for many tensors of which the same is to be said.
        notes: sentences about what was not looked at.
    """

    headers: Headers
    layers: dict[str, LayerTensors] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def survey(
    headers: Headers,
    expected: Sequence[ExpectedLayer],
    section: Mapping[str, Any] | None = None,
    description: tuple[str, Mapping[str, Any]] = ("", {}),
) -> Survey:
    """Compare a folder with what config.json asks for.

    Args:
        headers: of the folder.
        expected: the layers that will be loaded.
        section: its quantization_config.
        description: msModelSlim's file, its name and its content; empty without one.
    """
    found = Survey(headers, problems=list(headers.problems))
    layers = Layers(headers.entries.values())
    any_style = any(layer.style for root in layers.by_root.values() for layer in root.values())
    problems: list[Problem] = []
    for layer in expected:
        tensors = layers.find(layer.name, layer.ids)
        if tensors is None and not layer.required:
            found.notes.append(f"{layer.name}: no file holds this draft layer.")
        elif tensors is None and any_style:
            got = "has no tensor in any file"
            problems.append(Problem(CONFIG, layer.name, got, f"{layer.experts} experts", FITS_CONFIG))
        elif tensors is None or not tensors.style:
            found.notes.append(f"{layer.name}: its experts' names are not known here, so they were not looked at.")
        else:
            found.layers[layer.name] = tensors
            problems += Comparison(layer, tensors, section, description[0] or CONFIG).problems()
    told = {name for problem in problems for name in (problem.tensor, *problem.alike)}
    absent = _described_but_absent(
        headers, description, [found.layers[layer.name] for layer in expected if _as_described(layer, found)]
    )
    problems += [problem for problem in absent if problem.tensor not in told]
    found.problems += _together(problems)
    return found


def _as_described(layer: ExpectedLayer, found: Survey) -> bool:
    """Not of a layer that this package has converted since."""
    return layer.name in found.layers and not layer.form.name.startswith(OWN_PREFIX)


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
