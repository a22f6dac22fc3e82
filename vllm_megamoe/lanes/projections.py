"""The checkpoint's projections behind a linear of vLLM's, and how each of them is stored."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from vllm.model_executor.layers.linear import QKVParallelLinear

from vllm_megamoe.checkpoint.formats import ExpertsFormat
from vllm_megamoe.checkpoint.names import names_of
from vllm_megamoe.checkpoint.readers import Reader
from vllm_megamoe.checkpoint.recognise import make_reader, source_section
from vllm_megamoe.checkpoint.stored.part import Stored
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.lanes.quant_config import MegaMoeConfig

_FUSED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
    "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
}
"""What vLLM's models fuse under these names; a model's own mapping counts first, and some classes have none."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of a linear, as the checkpoint has it.

    Attributes:
        name: full, for messages.
        stored: how its tensors are stored.
    """

    name: str
    stored: Stored


_READERS: "WeakKeyDictionary[MegaMoeConfig, Reader]" = WeakKeyDictionary()


def formats_of(prefix: str, config: MegaMoeConfig) -> dict[str, ExpertsFormat]:
    """The format of each projection behind a linear, by the projection's name."""
    read = _READERS.get(config)
    if read is None:
        read = _READERS[config] = make_reader(config.section, config.side_files)
    home, dot, last = prefix.rpartition(".")
    parts = config.packed_modules_mapping.get(last) or _FUSED.get(last) or [last]
    return {f"{home}{dot}{part}": read(names_of(f"{home}{dot}{part}")) for part in parts}


def projections_of(prefix: str, config: MegaMoeConfig) -> tuple[Projection, ...]:
    """The projections as a Collected linear reads them."""
    forms, section = formats_of(prefix, config), source_section(config.section)
    return tuple(Projection(name, stored_of(form.name, section)) for name, form in forms.items())


def rows_of(layer: Any, output_size: int) -> tuple[int, ...]:
    """Output channels of each projection in the checkpoint, over all ranks."""
    if isinstance(layer, QKVParallelLinear) and len(layer.output_sizes) == 3:
        # `output_sizes` counts the heads that several ranks hold once for each of them.
        kv = layer.total_num_kv_heads
        heads = ((layer.total_num_heads, layer.head_size), (kv, layer.head_size), (kv, layer.v_head_size))
        return tuple(count * size for count, size in heads)
    return tuple(getattr(layer, "output_sizes", None) or [output_size])
