"""What is wrong with a checkpoint's files, as a sentence with file, tensor, what came, what was expected, a remedy."""

from dataclasses import dataclass

COPY = "Copy the checkpoint anew."
_SHOWN = 12
"""Names in one sentence."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file: where, what came, what was expected, what to do.

    Attributes:
        file: its name.
        tensor: the first tensor that it is about, empty where it is about the whole file.
        alike: names of further tensors of which the same is to be said.
    """

    file: str
    tensor: str
    got: str
    expected: str
    remedy: str
    alike: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.file}: {self.tensor}" if self.tensor else self.file
        if not self.alike:
            return f"{where} {self.got}; expected {self.expected}. {self.remedy}"
        named = self.alike if len(self.alike) <= _SHOWN else (*self.alike[: _SHOWN - 1], f"... {self.alike[-1]}")
        more = f"The same of {len(self.alike)} more: {', '.join(named)}."
        return f"{where} {self.got}; expected {self.expected}. {self.remedy} {more}"
