"""What a conversion has finished, in a file beside its results: the same command goes on where it ended."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_megamoe.checkpoint.writing import write_atomically
from vllm_megamoe.errors import ConfigError

JOURNAL = "megamoe-convert.json"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written and read again.

    Attributes:
        tensors: names of all in it.
        entry: of the experts in it, None in files of other tensors.
        off, size: sums of squares of what the conversion took from the weights, and of the weights.
        bytes: of its tensors.
    """

    tensors: tuple[str, ...]
    entry: dict[str, Any] | None = None
    off: float = 0.0
    size: float = 0.0
    bytes: int = 0

    def saved(self) -> dict[str, Any]:
        """What `Journal.open` reads."""
        return {"tensors": self.tensors, "entry": self.entry, "off": self.off, "size": self.size, "bytes": self.bytes}


@dataclass(slots=True)
class Journal:
    """See the module.

    Attributes:
        folder: of the results.
        of: what identifies source and options; another conversion's folder is not touched.
        files: name -> what is in it, of those that are done.
    """

    folder: Path
    of: str
    files: dict[str, Written] = field(default_factory=dict)

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
                files = {name: _written(one) for name, one in found["files"].items()}
                journal = cls(folder, found["of"], files)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{place}: no journal of a conversion ({error}). Delete the folder.") from error
            if journal.of != of:
                raise ConfigError(
                    f"{folder}: holds a conversion of another source or with other options; expected this one's, or an "
                    "empty folder. Name another folder, or delete it."
                )
            return journal
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: a file; expected a new folder, or that of a conversion to go on with.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made ({error.strerror}); expected room and rights.") from error
        if any(folder.iterdir()):
            raise ConfigError(f"{folder}: not empty; expected a new folder, or that of a conversion to go on with.")
        return cls(folder, of)

    def has(self, name: str) -> bool:
        """Whether a file was finished, and is there."""
        return name in self.files and (self.folder / name).is_file()

    def add(self, name: str, written: Written) -> None:
        """Note a file, at once or not at all."""
        self.files[name] = written
        self.save()

    def save(self) -> None:
        """Under its name at once or not at all."""
        content = {"of": self.of, "files": {name: one.saved() for name, one in self.files.items()}}
        write_atomically(self.folder / JOURNAL, [json.dumps(content).encode()])

    def close(self) -> None:
        """The conversion is done."""
        (self.folder / JOURNAL).unlink()


def _written(one: dict[str, Any]) -> Written:
    return Written(tuple(one["tensors"]), one["entry"], one["off"], one["size"], one["bytes"])
