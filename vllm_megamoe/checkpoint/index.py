"""The index of a folder's safetensors files: which file should hold which tensor, and where the files say otherwise.

It is untrusted: it names files of its own folder, or it is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_megamoe.checkpoint.problem import COPY, Problem
from vllm_megamoe.errors import CheckpointError

INDEX = "model.safetensors.index.json"
"""The index that vLLM filters files by; other tools' have another stem, and then every file is loaded."""


@dataclass(slots=True)
class Index:
    """What the index says.

    Attributes:
        name: of its file, empty where there is none.
        where: tensor -> file, without entries that name no file of the folder.
        problems: of the index itself.
    """

    name: str = ""
    where: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def glob(folder: Path, pattern: str) -> list[Path]:
    """Files of a folder by name, sorted.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        return sorted(file for file in folder.glob(pattern) if file.is_file())
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be read ({error.strerror}); expected a checkpoint's folder."
        ) from error


def read_index(folder: Path) -> Index:
    """The index of a folder; what is wrong with it is in the result.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    names = [file.name for file in glob(folder, "*.safetensors.index.json")]
    if not names:
        return Index()
    found = Index(INDEX if INDEX in names else names[0])
    try:
        content = json.loads((folder / found.name).read_bytes())
        where = content.get("weight_map") if isinstance(content, dict) else None
    except (OSError, ValueError, RecursionError) as error:
        found.problems.append(Problem(found.name, "", f"is no JSON ({str(error)[:80]})", "JSON", COPY))
        return found
    if not isinstance(where, dict):
        found.problems.append(Problem(found.name, "", "has no object weight_map", "the file of each tensor", COPY))
        return found
    wrong: dict[str, list[str]] = {}
    for tensor, file in where.items():
        if isinstance(file, str) and _is_plain(file):
            found.where[tensor] = file
        else:
            wrong.setdefault(repr(file), []).append(tensor)
    for file, tensors in wrong.items():
        remedy = "Do not use this checkpoint, or write its index anew."
        got, expected = f"points at {file}", "the name of a file in this folder"
        found.problems.append(Problem(found.name, tensors[0], got, expected, remedy, tuple(tensors[1:])))
    return found


def _is_plain(file: str) -> bool:
    """A name inside the folder: no path, so that no index leads out of it."""
    return not set(file) & set("/\\\0") and file.endswith(".safetensors")


def is_experts(name: str) -> bool:
    """A cheap look: most tensors of a model are none of a MoE layer's."""
    return "expert" in name or ".moe." in name or "shared_mlp" in name


def against_files(index: Index, held: Mapping[str, str], here: set[str], broken: set[str]) -> Iterator[Problem]:
    """Files that are not there; and of experts' tensors, where the index says something else than the files.

    Of all other tensors vLLM judges: an index may leave out what nobody loads.

    Args:
        held: tensor -> the file that holds it.
        here: names of files that are there.
        broken: names of files whose headers could not be read whole.
    """
    absent: dict[str, list[str]] = {}
    elsewhere: dict[tuple[str, str], list[str]] = {}
    for tensor, file in index.where.items():
        if file not in here:
            absent.setdefault(file, []).append(tensor)
        elif is_experts(tensor) and file not in broken and held.get(tensor) != file:
            elsewhere.setdefault((file, held.get(tensor, "")), []).append(tensor)
    for file, tensors in absent.items():
        got = f"should be in {file}, which is not there"
        yield Problem(index.name, tensors[0], got, "that file", "Fetch it.", tuple(tensors[1:]))
    for (file, held_by), tensors in elsewhere.items():
        got = f"should be in {file}, which does not hold it" + (f": {held_by} does" if held_by else "")
        yield Problem(index.name, tensors[0], got, "an index that fits the files", COPY, tuple(tensors[1:]))
    listed = set(index.where.values())
    missing = [name for name, file in held.items() if name not in index.where and file in listed and is_experts(name)]
    if missing:
        got, more = f"is not listed, but {held[missing[0]]} holds it", tuple(missing[1:])
        yield Problem(index.name, missing[0], got, "an index of every tensor of a file", COPY, more)
