"""One entry: the experts of a layer of a folder, given the name of its format.

The caller says the format (tests/formats/cases.py does for every fixture and generated checkpoint); nothing is guessed
from names or shapes, except that msModelSlim's description decides per linear.
"""

from collections.abc import Callable
from pathlib import Path

from formats.readings import bf16, compressed_tensors, fp8, gptq_awq, msmodelslim, mx, nvfp4
from formats.readings.experts import Expert, Layer, Projection
from formats.readings.names import LONG, experts_of, names_of, opened
from formats.readings.store import Store

Linear = Callable[[Store, str], Projection]

LINEARS: dict[str, Linear] = {
    "bf16": bf16.linear,
    "fp16": bf16.linear,
    "compressed-tensors-w8a8": compressed_tensors.int8,
    "compressed-tensors-w8a16": compressed_tensors.packed_int8,
    "compressed-tensors-w4a8": compressed_tensors.int4,
    "compressed-tensors-w4a8-group": compressed_tensors.int4,
    "compressed-tensors-w4a16": compressed_tensors.packed_int4,
    "compressed-tensors-w4a16-group": compressed_tensors.packed_int4,
    "compressed-tensors-fp8": compressed_tensors.fp8,
    "compressed-tensors-fp8-block": compressed_tensors.fp8_block,
    "compressed-tensors-mxfp8": mx.fp8,
    "compressed-tensors-mxfp4": mx.fp4_packed,
    "compressed-tensors-nvfp4": nvfp4.compressed_tensors,
    "fp8": fp8.rows,
    "fp8-block": fp8.block,
    "fp8-block-ue8m0": fp8.block,
    "deepseek-v4-fp4": mx.fp4_deepseek_v4,
    "deepseek-v4-fp8": fp8.block_deepseek_v4,
    "mxfp8": mx.fp8_scale_inv,
    "modelopt-mxfp8": mx.fp8,
    "modelopt-mxfp4": mx.fp4,
    "modelopt-w4a8-mxfp4-fp8": mx.fp4,
    "modelopt-fp8": fp8.rows,
    "modelopt-fp8-pb-wo": fp8.block_modelopt,
    "modelopt-nvfp4": nvfp4.modelopt,
    "modelopt-w4a16-nvfp4": nvfp4.modelopt,
    "quark-mxfp4": mx.fp4,
    "quark-int8": compressed_tensors.int8,
    "quark-fp8": fp8.rows,
    "gptq-int4": gptq_awq.gptq,
    "gptq-int4-group": gptq_awq.gptq,
    "gptq-int8": gptq_awq.gptq_int8,
    "gptq-int8-group": gptq_awq.gptq_int8,
    "awq-int4": gptq_awq.awq,
    "awq-int4-group": gptq_awq.awq,
    "auto-round-int4": gptq_awq.gptq,
    "auto-round-int4-group": gptq_awq.gptq,
    "auto-round-awq-int4-group": gptq_awq.awq,
    "auto-round-mxfp8": mx.fp8,
    "auto-round-mxfp4": mx.fp4_packed,
    "auto-round-fp8-block": fp8.block,
}
"""Format -> reading of one linear under its prefix (with the last dot)."""

LAYERS: dict[str, Callable[[Store, int | str], list[Expert]]] = {
    "gpt-oss-mxfp4": mx.gpt_oss,
    "fp8-block-per-projection": fp8.block_per_projection,
}
"""Format -> reading of a layer, for formats that store all experts in one tensor."""


def read_layer(folder: Path | Store, layer: int | str, layout: str, shared_layout: str | None = None) -> Layer:
    """The experts of a layer, in order of their number.

    Args:
        folder: a checkpoint, or what was read from one.
        layer: its number in the names, or a draft layer's name ("mtp.0").
        layout: format of the routed experts; any name that begins with msmodelslim reads by the description.
        shared_layout: format of the shared expert; None reads none.
    """
    store = opened(folder)
    names = names_of(store)
    block = names.prefix(layer)
    fused = bf16.FUSED.get(store.config["model_type"]) if layout in ("bf16", "fp16") else LAYERS.get(layout)
    if fused is not None:
        routed = fused(store, layer)
    else:
        linear = _linear(layout)
        routed = [
            Expert(*(linear(store, f"{block}{names.experts.format(e)}{name}.") for name in names.projections))
            for e in experts_of(store, layer)
        ]
    if shared_layout is None:
        return Layer(routed, [])
    own = _linear(shared_layout)
    projections = names.projections if "{}" in names.experts else LONG
    return Layer(routed, [Expert(*(own(store, f"{block}{names.shared}{name}.") for name in projections))])


def _linear(layout: str) -> Linear:
    return msmodelslim.linear if layout.startswith("msmodelslim") else LINEARS[layout]
