"""Where each model family keeps its experts: facts/checkpoints.md 3.1, and the fixtures' own names.

A layer is an integer, or the name of a draft layer ("mtp.0") where a family names those in another way.
"""

from dataclasses import dataclass
from pathlib import Path

from formats.readings.store import Store

LONG = ("gate_proj", "up_proj", "down_proj")
SHORT = ("w1", "w3", "w2")
"""w1 is gate, w2 is DOWN, w3 is up."""


@dataclass(frozen=True)
class Names:
    """Names of a family, projections in the order gate, up, down.

    Attributes:
        block: prefix of a layer's MoE block; {} is the layer.
        experts: below it, the experts; {} is the expert's number.
        projections: of a routed expert.
        shared: below the block, the shared expert; empty when the family has none.
        layer: what stands before {} in a name of a layer, to be replaced for a draft layer.
    """

    block: str
    experts: str = "experts.{}."
    projections: tuple[str, str, str] = LONG
    shared: str = ""
    layer: str = "model.layers."

    def prefix(self, layer: int | str) -> str:
        """The block's prefix in a layer."""
        if isinstance(layer, str):
            return self.block.replace(self.layer + "{}", layer)
        return self.block.format(layer)


NAMES = {
    "qwen2_moe": Names("model.layers.{}.mlp.", shared="shared_expert."),
    "qwen3_moe": Names("model.layers.{}.mlp."),
    "deepseek_v3": Names("model.layers.{}.mlp.", shared="shared_experts."),
    "kimi_k25": Names("language_model.model.layers.{}.mlp.", shared="shared_experts."),
    "mixtral": Names("model.layers.{}.block_sparse_moe.", projections=SHORT),
    "minimax_m2": Names("model.layers.{}.block_sparse_moe.", projections=SHORT),
    "minimax_m3": Names("model.layers.{}.block_sparse_moe.", projections=SHORT),
    "deepseek_v4": Names("layers.{}.ffn.", projections=SHORT, shared="shared_experts.", layer="layers."),
    "gpt_oss": Names("model.layers.{}.mlp.", experts="experts."),
    "qwen3_5_moe": Names("model.language_model.layers.{}.mlp.", experts="experts.", shared="shared_expert."),
    "qwen3_vl_moe": Names("model.language_model.layers.{}.mlp.", experts="experts."),
    "llama4": Names("language_model.model.layers.{}.feed_forward.", experts="experts.", shared="shared_expert."),
    "step3p5": Names("model.layers.{}.moe.", experts=""),
}
"""model_type -> names."""


def opened(folder: Path | Store) -> Store:
    """A folder or what was read from it."""
    return folder if isinstance(folder, Store) else Store.open(folder)


def names_of(store: Store) -> Names:
    """Names of the family that config.json states."""
    return NAMES[store.config["model_type"]]


def experts_of(store: Store, layer: int | str) -> list[int]:
    """Numbers of the routed experts of a layer that has a name per expert, in order."""
    names = names_of(store)
    before = names.prefix(layer) + names.experts.split("{}")[0]
    found = {name[len(before) :].split(".")[0] for name in store.tensors if name.startswith(before)}
    return sorted(int(number) for number in found if number.isdigit())
