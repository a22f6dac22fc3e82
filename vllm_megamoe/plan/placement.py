"""Where experts stand: a placement file read and checked, and one written from measured load.

A placement gives each layer its physical slots, in rank order: which logical expert stands in each. An expert may stand
on several ranks (a redundant copy); tokens then take its copies in turn.

    {"format": "megamoe expert placement 1", "layers": {"model.layers.0.mlp.experts": [0, 5, 2, 7, ...], ...}}

The file of measured load is what an engine writes to VLLM_MEGAMOE_LOAD_FILE.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts

FORMAT = "megamoe expert placement 1"
LOAD_FORMAT = "megamoe expert load 1"


def placed(layers: Sequence[MoeFacts], file: str | None, ranks: int) -> tuple[list[MoeFacts], list[str]]:
    """Layers with the slots that a placement file gives them.

    Args:
        layers: of the model, draft layers too; one that the file leaves out keeps an expert in each slot.
        file: the option `expert_placement`, None for none.
        ranks: of the experts' communicator.

    Returns:
        The layers, and a sentence for each thing that is wrong; with one, the layers are as they were.
    """
    if file is None:
        return list(layers), []
    try:
        slots = _slots_in(_read(file, FORMAT), file)
    except ConfigError as error:
        return list(layers), [str(error)]
    wrong = list(_wrong(slots, layers, ranks, file))
    return [replace(layer, slots=() if wrong else slots.get(layer.name, ())) for layer in layers], wrong


def _wrong(slots: Mapping[str, tuple[int, ...]], layers: Sequence[MoeFacts], ranks: int, file: str) -> Iterator[str]:
    names = [layer.name for layer in layers]
    for name in slots:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            such = f", such as {near[0]}" if near else ""
            yield f"{file}: {name} is no MoE layer of this model; expected its {len(names)} layers{such}. Rename it."
    for layer in layers:
        if layer.name in slots and (found := wrong_layer(slots[layer.name], layer, ranks)):
            yield f"{file}: {layer.name}: {found}"
    for draft in (False, True):
        counts = {
            layer.name: len(slots.get(layer.name, ())) or layer.num_experts for layer in layers if layer.draft is draft
        }
        most = max(counts.values(), default=0)
        few = [name for name, count in counts.items() if count != most]
        if few:
            yield (
                f"{file}: {few[0]} has {counts[few[0]]} slots, other layers have {most}; expected the same in all "
                "layers: they share the operator's buffer. Give it as many."
            )


def wrong_layer(slots: tuple[int, ...], layer: MoeFacts, ranks: int) -> str:
    """What is wrong with the slots of a layer, as the end of a sentence; empty where nothing is."""
    experts = layer.num_experts
    strange = sorted({slot for slot in slots if not 0 <= slot < experts})
    if strange:
        return f"expert {strange[0]} in a slot; expected experts from 0 to {experts - 1}. Correct it."
    absent = sorted(set(range(experts)) - set(slots))
    if absent:
        return f"experts {_some(absent)} stand nowhere; expected each of {experts} in a slot. Add them."
    if len(slots) % ranks:
        return (
            f"{len(slots)} slots on {ranks} ranks; expected the same number on every rank. Write the placement for "
            f"{ranks} ranks."
        )
    each = len(slots) // ranks
    for rank in range(ranks):
        own = slots[rank * each : (rank + 1) * each]
        twice = sorted({slot for slot in own if own.count(slot) > 1})
        if twice:
            return f"expert {twice[0]} twice on rank {rank}; expected its copies on different ranks. Move one."
    return ""


def _some(numbers: Sequence[int], shown: int = 4) -> str:
    more = f" and {len(numbers) - shown} more" if len(numbers) > shown else ""
    return ", ".join(map(str, numbers[:shown])) + more


def _read(file: str, form: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; expected a JSON file of {form!r}.") from error
    if not isinstance(content, dict) or content.get("format") != form or not isinstance(content.get("layers"), dict):
        got = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ConfigError(f'{file} has "format" {got!r}; expected {form!r} with "layers". Name another file.')
    return content


def _slots_in(content: Mapping[str, Any], file: str) -> dict[str, tuple[int, ...]]:
    for name, slots in content["layers"].items():
        if not isinstance(slots, list) or not all(type(slot) is int for slot in slots):
            raise ConfigError(f"{file}: {name} is {str(slots)[:60]}; expected a list of expert numbers. Correct it.")
    return {name: tuple(slots) for name, slots in content["layers"].items()}


def read_rows(file: str) -> dict[str, list[int]]:
    """Rows of each expert by layer, from a load file.

    Raises:
        ConfigError: it is none, or has counted nothing.
    """
    layers = _read(file, LOAD_FORMAT)["layers"]
    try:
        rows = {name: [int(count) for count in layer["rows"]] for name, layer in layers.items()}
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f'{file}: a layer without a list "rows" ({error!r}); measure the load again.') from error
    if not any(map(sum, rows.values())):
        raise ConfigError(f"{file} has counted no rows; expected those of requests. Measure under the usual traffic.")
    return rows


def balanced(rows: Sequence[int], ranks: int, redundant: int = 0) -> tuple[int, ...]:
    """Slots that share measured rows evenly over ranks, in rank order.

    Redundant slots go one after the other to the expert whose copies get most rows each; then copies go, the fullest
    first, to the emptiest rank that has a free slot and not the same expert.

    Args:
        rows: of each expert.
        ranks: that share them.
        redundant: slots beyond one for each expert; with the experts a multiple of ranks.

    Raises:
        ConfigError: no such number of slots.
    """
    experts = len(rows)
    slots = experts + redundant
    if slots % ranks or redundant < 0 or slots > experts * ranks:
        best = -experts % ranks
        raise ConfigError(
            f"{experts} experts and {redundant} redundant ones on {ranks} ranks; expected the same number on every "
            f"rank and an expert once on a rank at most. Take {best} or {best + ranks} redundant ones, or {ranks} more."
        )
    copies = [1] * experts
    for _ in range(redundant):
        most = max((e for e in range(experts) if copies[e] < ranks), key=lambda e: (rows[e] / copies[e], -e))
        copies[most] += 1
    shares = sorted(
        ((rows[e] / copies[e], e) for e in range(experts) for _ in range(copies[e])), key=lambda s: (-s[0], s[1])
    )
    home: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    room = slots // ranks
    for share, expert in shares:
        free = [r for r in range(ranks) if len(home[r]) < room and expert not in home[r]]
        if not free:
            free = [_make_room(home, load, rows, copies, expert, room)]
        rank = min(free, key=lambda r: (load[r], r))
        home[rank].append(expert)
        load[rank] += share
    return tuple(expert for own in home for expert in sorted(own))


def _make_room(
    home: list[list[int]], load: list[float], rows: Sequence[int], copies: Sequence[int], expert: int, room: int
) -> int:
    """A rank without the expert, which has given its lightest one to a rank with a free slot."""
    (open_rank, *_) = (r for r in range(len(home)) if len(home[r]) < room)
    moves = [
        (rows[other] / copies[other], rank, other)
        for rank in range(len(home))
        if expert not in home[rank]
        for other in home[rank]
        if other not in home[open_rank]
    ]
    share, rank, other = min(moves)
    home[rank].remove(other)
    home[open_rank].append(other)
    load[rank] -= share
    load[open_rank] += share
    return rank


def imbalance(rows: Sequence[int], slots: Sequence[int], ranks: int) -> float:
    """The fullest rank's rows over the mean, when copies of an expert share its rows evenly; 0 without rows."""
    copies = {expert: slots.count(expert) for expert in set(slots)}
    each = len(slots) // ranks
    load = [sum(rows[e] / copies[e] for e in slots[rank * each : (rank + 1) * each]) for rank in range(ranks)]
    return max(load) * ranks / sum(load) if sum(load) else 0.0


def write_placement(file: Path, slots: Mapping[str, Sequence[int]]) -> None:
    """Write a placement file, a line for each layer.

    Raises:
        ConfigError: it cannot be written.
    """
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(list(own))}" for name, own in slots.items())
    try:
        file.write_text(f'{{"format": {json.dumps(FORMAT)}, "layers": {{\n{lines}\n}}}}\n', encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}. Name a file in a folder of yours.") from error


def placement_of(
    rows: Mapping[str, Sequence[int]], layers: Iterable[MoeFacts], ranks: int, redundant: int
) -> dict[str, tuple[int, ...]]:
    """A balanced placement of every layer; one that was not measured stays in order where no slot is redundant.

    Raises:
        ConfigError: the load is another model's, or a layer is missing.
    """
    found = {}
    for layer in layers:
        own = rows.get(layer.name)
        if own is None or len(own) != layer.num_experts:
            got = "is not in the load file" if own is None else f"has {len(own)} experts in the load file"
            raise ConfigError(f"{layer.name} {got}; expected {layer.num_experts}. Measure this model's load.")
        found[layer.name] = balanced(own, ranks, redundant)
    return found
