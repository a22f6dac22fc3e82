"""Malformed variants: each plants one fault into a written checkpoint and says what an error has to name.

A loader owes each an error with file, tensor and remedy, before a request is taken, and executes nothing. The fault
sits in expert 1 of the second MoE layer, so that a look at expert 0 or at the first layer alone misses it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from formats.generate.checkpoint import Checkpoint
from formats.generate.surgery import Place, write_header


@dataclass(frozen=True)
class Malformed:
    """A checkpoint with one fault.

    Attributes:
        file: name of the file that the error must name.
        tensors: names (or beginnings of names) of which the error must name one; empty for faults of a whole file.
        what: the fault in words.
    """

    file: str
    tensors: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        applies: whether a checkpoint can have it.
        plant: changes the checkpoint on disk.
        visible: whether a reading that checks little notices, by raising or by returning other numbers; None where
            that hangs on the format or on the order of reading.
    """

    applies: Callable[[Place], bool]
    plant: Callable[[Place], Malformed]
    visible: bool | None = True


def always(place: Place) -> bool:
    """A fault that every checkpoint can have."""
    return True


def _truncated(place: Place) -> Malformed:
    file = place.file_of(place.weight)
    file.write_bytes(file.read_bytes()[:-64])
    return Malformed(file.name, (), "the file ends before its last tensor")


def _trailing(place: Place) -> Malformed:
    file = place.file_of(place.weight)
    file.write_bytes(file.read_bytes() + bytes(24))
    return Malformed(file.name, (), "bytes behind the last tensor, which the library refuses")


def _broken_link(place: Place) -> Malformed:
    file = place.file_of(place.weight)
    file.unlink()
    file.symlink_to(place.folder / "gone")
    return Malformed(file.name, (), "a link to a file that is not there, as an interrupted download leaves it")


def _long_header(place: Place) -> Malformed:
    file = place.file_of(place.weight)
    data = file.read_bytes()
    file.write_bytes((len(data) * 2).to_bytes(8, "little") + data[8:])
    return Malformed(file.name, (), "the header's length is greater than the file")


def _offsets(place: Place) -> Malformed:
    file = place.file_of(place.weight)

    def push(header: dict[str, dict[str, list[int]]]) -> None:
        begin, end = header[place.weight]["data_offsets"]
        size = file.stat().st_size
        header[place.weight]["data_offsets"] = [begin + size, end + size]

    write_header(file, push)
    return Malformed(file.name, (place.weight,), "its data_offsets lie behind the end of the file")


def _index(place: Place) -> str:
    assert place.index is not None
    return place.index.name


def _with_index(place: Place) -> bool:
    return place.index is not None


def _index_names_absent_file(place: Place) -> Malformed:
    place.change_index(lambda where: where | {place.weight: "model-00009-of-00002.safetensors"})
    return Malformed(_index(place), (place.weight,), "the index names a file that is not there")


def _index_leaves_folder(place: Place) -> Malformed:
    file = place.file_of(place.weight)
    outside = place.folder.parent / f"{place.folder.name}-outside.safetensors"
    outside.write_bytes(file.read_bytes())
    place.change_index(lambda where: where | {place.weight: f"../{outside.name}"})
    return Malformed(_index(place), (place.weight,), "the index points outside the folder, at a good file")


def _index_names_absent_tensor(place: Place) -> Malformed:
    name = place.prefix + "weight_elsewhere"
    place.change_index(lambda where: where | {name: place.file_of(place.weight).name})
    return Malformed(_index(place), (name,), "the index names a tensor that its file does not hold")


def _index_lacks_tensor(place: Place) -> Malformed:
    place.change_index(lambda where: {key: value for key, value in where.items() if key != place.weight})
    return Malformed(_index(place), (place.weight,), "a tensor of the files is not in the index")


def _twice(place: Place) -> Malformed:
    first = place.file_of(place.weight)
    other = next(file for file in sorted(place.folder.glob("*.safetensors")) if file != first)
    beside = next(name for name in place.indexed if place.file_of(name) == other)
    value = place.tensor(place.weight)
    place.add(place.weight, value.flip(0), beside)
    return Malformed(other.name, (place.weight,), "two files hold a tensor of this name, with other contents")


def _pickle_only(place: Place) -> Malformed:
    """A pickle that makes a folder when it is loaded, under the name of old PyTorch checkpoints."""
    trap = place.folder / "executed"
    program = b"cos\nmkdir\n(V" + str(trap).encode("unicode_escape") + b"\ntR."
    for file in [*place.folder.glob("*.safetensors"), *place.folder.glob("*.index.json")]:
        file.unlink()
    (place.folder / "pytorch_model.bin").write_bytes(program)
    return Malformed("pytorch_model.bin", (), "weights only as a pickle, which runs code when it is loaded")


FILE_FAULTS = {
    "truncated": Fault(always, _truncated),
    "bytes-behind-last-tensor": Fault(always, _trailing, visible=None),
    "broken-link": Fault(always, _broken_link, visible=None),
    "header-longer-than-file": Fault(always, _long_header),
    "offsets-behind-end": Fault(always, _offsets),
    "index-names-absent-file": Fault(_with_index, _index_names_absent_file, visible=False),
    "index-leaves-folder": Fault(_with_index, _index_leaves_folder, visible=False),
    "index-names-absent-tensor": Fault(_with_index, _index_names_absent_tensor, visible=False),
    "index-lacks-tensor": Fault(_with_index, _index_lacks_tensor, visible=False),
    "two-files-hold-it": Fault(_with_index, _twice, visible=None),
    "pickle-only": Fault(always, _pickle_only),
}
"""Faults of files and index."""


def plant(fault: Fault, checkpoint: Checkpoint) -> Malformed | None:
    """Plant a fault; None where this checkpoint cannot have it."""
    place = Place.of(checkpoint)
    return fault.plant(place) if fault.applies(place) else None
