"""What experts are called: one projection has many names, and config files name modules in three ways.

vLLM, the hub and the quantisation tools call the same experts differently, so every question about a projection is
asked with all its names; and an entry of a file's list may be a plain name, a name with `*`, or a regular expression.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence

from vllm_megamoe.errors import ConfigError

Names = tuple[str, ...]
"""The names that a checkpoint's files may use for one module."""

_NUMBER = "{number}"
"""Stands for an expert's number in a name."""

_ROOTS = ("", "model.", "model.language_model.", "language_model.model.", "language_model.", "backbone.")
_DRAFT_ROOTS = ("mtp.layers.", "mtp.", "model.mtp.layers.")
_LAYER = re.compile(r"^(?P<root>.*?)layers\.(?P<number>\d+)\.(?P<tail>.+)$")
_SAME_BLOCK = {"mlp": "block_sparse_moe", "block_sparse_moe": "mlp"}
PROJECTIONS = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
"""Both naming styles of an expert's three matrices; w2 is the down projection."""


def names_of(name: str, num_layers: int | None = None) -> Names:
    """All names of a module that vLLM or a checkpoint calls `name`, itself first.

    Args:
        name: such as `model.layers.3.mlp.experts.0.gate_proj`.
        num_layers: of the decoder; layers beyond it are draft layers, which some checkpoints number from 0.
    """
    found = _LAYER.match(name)
    if found is None:
        return (name,)
    starts = [f"{found['root']}layers.{found['number']}.", *_starts(found["root"], int(found["number"]), num_layers)]
    return tuple(dict.fromkeys(start + end for start in starts for end in _tails(found["tail"])))


def projections_of(
    prefix: str, experts: Sequence[int], num_layers: int | None = None, gated: bool = True
) -> dict[str, Names]:
    """The names of each projection below an experts' or a shared MLP's prefix, by its name within the layer.

    Args:
        prefix: such as `model.layers.3.mlp.experts`, or of a shared MLP.
        experts: numbers of the routed experts to name; none for a shared MLP.
        num_layers: see `names_of`.
        gated: whether the experts have a gate projection beside up and down.
    """
    projections = [styles[0] for styles in PROJECTIONS if gated or styles[0] != "gate_proj"]
    if not experts:
        return {one: names_of(f"{prefix}.{one}", num_layers) for one in projections}
    # The names of all experts differ in the number alone; a layer may have a thousand of them.
    patterns = {one: names_of(f"{prefix}.{_NUMBER}.{one}", num_layers) for one in projections}
    return {
        f"{number}.{one}": tuple(name.replace(_NUMBER, str(number)) for name in patterns[one])
        for number in experts
        for one in projections
    }


def within_layer(name: str) -> str:
    """A projection's name within its layer: `7.up_proj` of a routed expert, `up_proj` of a shared MLP."""
    _, routed, tail = name.rpartition(".experts.")
    return tail if routed else name.rpartition(".")[2]


def _starts(root: str, number: int, num_layers: int | None) -> Iterator[str]:
    """What stands before a layer's modules."""
    draft = number if "mtp" in root else None
    if draft is None:
        yield from (f"{other}layers.{number}." for other in _ROOTS)
        if num_layers is not None and number >= num_layers:
            draft = number - num_layers
    if draft is not None:
        yield from (f"{other}{draft}." for other in _DRAFT_ROOTS)


def _tails(tail: str) -> Iterator[str]:
    """A module within its layer: the block's other name, the projection's other name, experts in one tensor."""
    head, _, last = tail.rpartition(".")
    styles = next((pair for pair in PROJECTIONS if last in pair), (last,))
    block, _, rest = head.partition(".")
    heads = [head, f"{_SAME_BLOCK[block]}.{rest}".rstrip(".")] if block in _SAME_BLOCK else [head]
    if head.startswith("moe.experts."):
        # Step keeps all experts of a projection in one tensor beside the router.
        heads.append("moe")
    yield from (f"{one}.{style}".lstrip(".") for one in heads for style in styles)


def compiled(expression: str, place: str) -> re.Pattern[str]:
    """A regular expression of a config file.

    Raises:
        ConfigError: it is none, with its place.
    """
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{place}: {expression!r} is no regular expression ({error}); expected one, or a plain name without `re:`. "
            "Correct the file."
        ) from error


class Patterns:
    """Entries that name modules.

    Args:
        entries: names, `re:` and a regular expression, or names with `*`.
        inside: whether a plain entry may stand anywhere in the name as a run of whole components (transformers,
            ModelOpt); otherwise it must begin the name (compressed-tensors).
        place: the file and key, for errors.

    Raises:
        ConfigError: an entry is no regular expression.
    """

    def __init__(self, entries: Iterable[str], inside: bool, place: str) -> None:
        entries = list(entries)
        globs = [fnmatch.translate(entry) for entry in entries if "*" in entry and not entry.startswith("re:")]
        # Published files hold hundreds of globs: one expression for all of them is much faster than one for each.
        regular = [entry[3:] for entry in entries if entry.startswith("re:")] + (["|".join(globs)] if globs else [])
        self._plain = {entry.rstrip("*").strip(".") for entry in entries if not entry.startswith(("re:", "*"))} - {""}
        # Runs of other lengths than the entries have need no look: models list thousands of names.
        self._lengths = sorted({entry.count(".") + 1 for entry in self._plain})
        self._regular = [compiled(pattern, place) for pattern in regular]
        self._inside = inside

    def __bool__(self) -> bool:
        return bool(self._plain or self._regular)

    def match(self, names: Names) -> bool:
        """Whether an entry means the module of these names."""
        return any(self._plain_match(name) or any(r.match(name) for r in self._regular) for name in names)

    def _plain_match(self, name: str) -> bool:
        parts = name.split(".")
        starts = range(len(parts)) if self._inside else (0,)
        return any(".".join(parts[i : i + n]) in self._plain for i in starts for n in self._lengths)
