"""The tensors of a folder by MoE layer, expert, projection and part, in every naming that checkpoints use.

    per expert       <block>.experts.3.gate_proj.weight, w1 for gate, w3 for up, w2 for down
    fused            <block>.experts.gate_up_proj, _bias, _blocks, _scales and the like: all experts in one tensor
    per projection   <block>.gate_proj.weight [E, I, H] (Step)
    shared           <block>.shared_experts.gate_proj.weight and the module's other names

Sources of the names: the published checkpoints and the loaders of vLLM 0.32 that read them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vllm_megamoe.checkpoint.headers import Entry
from vllm_megamoe.checkpoint.index import is_experts

GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"
PROJECTIONS: Mapping[str, str] = {GATE: GATE, UP: UP, DOWN: DOWN, "w1": GATE, "w3": UP, "w2": DOWN}
"""A projection's name in a file -> the long one; w2 is the down projection."""

_SHARED_NAMES = "shared_experts|shared_expert|share_expert|shared_mlp"
_NUMBERED = re.compile(r"^(?P<block>.*?)\.experts\.(?P<expert>\d+)\.(?P<rest>.+)$")
_SHARED = re.compile(rf"^(?P<block>.*?)\.(?P<module>{_SHARED_NAMES})\.(?P<rest>.+)$")
_FUSED = re.compile(r"^(?P<block>.*?)\.experts\.(?P<rest>[^.]+(?:\.weight\w*)?)$")
_STACKED = re.compile(r"^(?P<block>.*?\.moe)\.(?P<rest>(?:gate|up|down)_proj\..+)$")
_PROJECTION = re.compile(r"^(?P<projection>gate_proj|up_proj|down_proj|w1|w2|w3)\.(?P<part>[^.]+)$")
_LAYER = re.compile(r"^(?P<root>.*?)(?P<kind>layers|mtp|blocks)\.(?P<number>\d+)(?:\.|$)")

FUSED_PARTS = re.compile(
    r"^(?P<projection>gate_up_proj|down_proj)(?P<part>|_bias|_blocks|_scales?|_scale_inv|\.weight\w*)$"
)
"""A fused tensor's name behind `experts.`."""

LayerId = tuple[bool, int]
"""Whether the name counts draft layers by themselves (`mtp.0`), and the number."""

Parts = dict[str, Entry]
"""The tensors of a projection by what stands behind its name."""


@dataclass(slots=True)
class LayerTensors:
    """The tensors of one layer's experts.

    Attributes:
        block: what stands before `experts.` in the files' names.
        experts: number -> projection -> parts, of files that name each expert.
        spelling: projection -> its name in the files (`gate_proj` or `w1`).
        fused: name behind `experts.` -> tensor of all experts.
        stacked: projection -> parts, each of all experts.
        shared: projection -> parts of the shared expert.
        shared_module: its prefix.
        others: tensors below the experts that no naming explains.
    """

    block: str = ""
    experts: dict[int, dict[str, Parts]] = field(default_factory=dict)
    spelling: dict[str, str] = field(default_factory=dict)
    fused: Parts = field(default_factory=dict)
    stacked: dict[str, Parts] = field(default_factory=dict)
    shared: dict[str, Parts] = field(default_factory=dict)
    shared_module: str = ""
    others: list[Entry] = field(default_factory=list)

    @property
    def routed(self) -> Iterator[Entry]:
        """Every tensor of routed experts that has a place."""
        yield from (entry for expert in self.experts.values() for parts in expert.values() for entry in parts.values())
        yield from self.fused.values()
        yield from (entry for parts in self.stacked.values() for entry in parts.values())

    @property
    def style(self) -> str:
        """`per expert`, `fused`, `per projection`, or empty where no naming fits."""
        return "per expert" if self.experts else "per projection" if self.stacked else "fused" if self.fused else ""

    @property
    def parts(self) -> dict[str, frozenset[str]]:
        """Projection -> the parts that an expert has there, of files that name each expert."""
        found: dict[str, frozenset[str]] = {}
        for expert in self.experts.values():
            for projection, parts in expert.items():
                found[projection] = found.get(projection, frozenset()).union(parts)
        return found

    def prefix_of(self, expert: int | None, projection: str) -> str:
        """A projection's name in the files, without its parts."""
        name = self.spelling.get(projection, projection)
        if self.stacked:
            return f"{self.block}.{name}"
        return f"{self.block}.experts.{expert}.{name}" if expert is not None else f"{self.shared_module}.{name}"


def layer_id(name: str) -> tuple[str, LayerId] | None:
    """The root and the layer of a name; None where it names no layer."""
    found = _LAYER.match(name)
    if found is None:
        return None
    draft = found["kind"] == "mtp" or "mtp" in found["root"].split(".")
    return found["root"], (draft, int(found["number"]))


class Layers:
    """A folder's MoE layers.

    Args:
        entries: every tensor.

    Attributes:
        by_root: root -> layer -> tensors; multimodal checkpoints may number layers under several roots.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.by_root: dict[str, dict[LayerId, LayerTensors]] = {}
        for entry in entries:
            if is_experts(entry.name):
                self._add(entry)

    def find(self, prefix: str, ids: Iterable[LayerId]) -> LayerTensors | None:
        """The tensors of a layer that vLLM calls `prefix`, under the first of the numbers that the files may use."""
        own = layer_id(prefix)
        roots = sorted(self.by_root, key=lambda root: (own is None or root != own[0], "language" not in root, root))
        for id_ in ids:
            for root in roots:
                found = self.by_root[root].get(id_)
                if found is not None and (found.style or found.others):
                    return found
        return None

    def _add(self, entry: Entry) -> None:
        place = layer_id(entry.name)
        if place is None:
            return
        root, id_ = place
        layer = self.by_root.setdefault(root, {}).setdefault(id_, LayerTensors())
        if found := _NUMBERED.match(entry.name):
            layer.block = found["block"]
            split = _PROJECTION.match(found["rest"])
            if split is None:
                layer.others.append(entry)
                return
            long = PROJECTIONS[split["projection"]]
            layer.spelling[long] = split["projection"]
            layer.experts.setdefault(int(found["expert"]), {}).setdefault(long, {})[split["part"]] = entry
        elif found := _SHARED.match(entry.name):
            split = _PROJECTION.match(found["rest"])
            if split is not None:
                layer.shared_module = f"{found['block']}.{found['module']}"
                layer.shared.setdefault(PROJECTIONS[split["projection"]], {})[split["part"]] = entry
        elif found := _STACKED.match(entry.name):
            layer.block = found["block"]
            split = _PROJECTION.match(found["rest"])
            if split is not None:
                layer.stacked.setdefault(split["projection"], {})[split["part"]] = entry
        elif found := _FUSED.match(entry.name):
            layer.block = found["block"]
            if FUSED_PARTS.match(found["rest"]):
                layer.fused[found["rest"]] = entry
            else:
                layer.others.append(entry)
        elif ".experts." in entry.name:
            layer.others.append(entry)
