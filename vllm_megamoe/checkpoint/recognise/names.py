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
    starts = [f"{found['root']}layers.{found['number']}.", *_starts(found["root"], int(found["number"]), num_layers)]
    return tuple(dict.fromkeys(start + end for start in starts for end in _tails(found["tail"])))


def projections_of(prefix: str, experts: list[int], num_layers: int | None = None) -> list[Names]:
    """The names of each projection below an experts' or a shared MLP's prefix."""
    routed = prefix.endswith("experts") and not prefix.endswith("shared_experts")
    homes = [f"{prefix}.{number}" for number in experts] if routed else [prefix]
    return [names_of(f"{home}.{styles[0]}", num_layers) for home in homes for styles in PROJECTIONS]


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
