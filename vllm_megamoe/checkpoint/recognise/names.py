"""One module, many names: vLLM, the hub and the quantisation tools call the same experts differently."""

import re
from collections.abc import Iterator

Names = tuple[str, ...]
"""The names that a checkpoint's files may use for one module."""

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
    root, number, tail = found["root"], int(found["number"]), found["tail"]
    roots = [f"{root}layers.{number}."]
    if "mtp" in root:
        roots += [f"{draft}{number}." for draft in _DRAFT_ROOTS]
    else:
        roots += [f"{other}layers.{number}." for other in _ROOTS]
        if num_layers is not None and number >= num_layers:
            roots += [f"{draft}{number - num_layers}." for draft in _DRAFT_ROOTS]
    return tuple(dict.fromkeys(start + end for start in roots for end in _tails(tail)))


def projections_of(prefix: str, experts: list[int], num_layers: int | None = None) -> list[Names]:
    """The names of each projection below an experts' or an MLP's prefix."""
    homes = [f"{prefix}.{number}" for number in experts] if prefix.rpartition(".")[2].endswith("experts") else [prefix]
    if prefix.rpartition(".")[2] in ("shared_experts",):
        homes = [prefix]
    return [
        tuple(name for style in styles for name in _projection(home, style, num_layers))
        for home in homes
        for styles in PROJECTIONS
    ]


def _projection(home: str, style: str, num_layers: int | None) -> Iterator[str]:
    yield from names_of(f"{home}.{style}", num_layers)
    if ".moe.experts." in home:
        # Step keeps all experts of a projection in one tensor beside the router.
        yield from names_of(f"{home.partition('.experts.')[0]}.{style}", num_layers)


def _tails(tail: str) -> Iterator[str]:
    yield tail
    block, _, rest = tail.partition(".")
    if block in _SAME_BLOCK and rest:
        yield f"{_SAME_BLOCK[block]}.{rest}"
