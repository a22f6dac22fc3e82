"""Malformed tensors and descriptions: wrong dtypes and shapes, impossible scales and codes, contradictions."""

from collections.abc import Callable

import torch
from formats.generate.malformed import Fault, Malformed, always
from formats.generate.surgery import Place
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_OTHER_DTYPE = {
    torch.int8: torch.int16,
    torch.uint8: torch.int16,
    torch.int32: torch.int64,
    torch.bfloat16: torch.int32,
    torch.float8_e4m3fn: torch.float32,
}


def _float_scale(place: Place) -> bool:
    return place.scale is not None and place.tensor(place.scale).dtype in FLOATS


def _scaled(place: Place) -> bool:
    return place.scale is not None


def _four_bits(place: Place) -> bool:
    kind = place.checkpoint.recipe.kind
    packed = place.tensor(place.weight).dtype in (torch.uint8, torch.int8, torch.int32)
    return packed and kind.startswith(("int4", "mxfp4", "nvfp4")) and not _int4_in_bytes(place)


def _has(suffix: str) -> Callable[[Place], bool]:
    return lambda place: suffix in place.suffixes


def _msmodelslim(place: Place) -> bool:
    return place.checkpoint.recipe.tool == "msmodelslim"


def _weight_dtype(place: Place) -> Malformed:
    place.change(place.weight, lambda w: w.to(_OTHER_DTYPE[w.dtype]))
    return Malformed(place.file_of(place.weight).name, (place.weight,), "the weight has another dtype, equal numbers")


def _scale_of(place: Place, what: str, change: Callable[[Tensor], Tensor]) -> Malformed:
    assert place.scale is not None
    place.change(place.scale, change)
    return Malformed(place.file_of(place.scale).name, (place.scale,), what)


def _put(value: float) -> Callable[[Tensor], Tensor]:
    def change(scale: Tensor) -> Tensor:
        flat = scale.reshape(-1)
        flat[-1] = value
        return flat.reshape(scale.shape)

    return change


def _nan(scale: Tensor) -> Tensor:
    if scale.dtype in FLOATS:
        return _put(float("nan"))(scale)
    flat = scale.view(torch.uint8).reshape(-1)
    flat[-1] = 0x7F if scale.dtype == torch.float8_e4m3fn else 0xFF
    return flat.view(scale.dtype).reshape(scale.shape)


def _odd_packing(place: Place) -> Malformed:
    place.change(place.weight, lambda w: w[:-1] if _pairs_of_rows(place) else w[..., :-1])
    return Malformed(place.file_of(place.weight).name, (place.weight,), "the packed weight lacks a row or column")


def _pairs_of_rows(place: Place) -> bool:
    return "msmodelslim-w4a8-dynamic" in place.checkpoint.recipe.format or "qweight" in place.suffixes


def _weight_short(place: Place) -> Malformed:
    place.change(place.weight, lambda w: w[..., :-32, :])
    return Malformed(place.file_of(place.weight).name, (place.weight,), "the weight lacks 32 rows")


def _missing(place: Place) -> Malformed:
    name = place.scale or place.weight
    file = place.file_of(name).name
    place.remove(name)
    return Malformed(file, (name,), "a tensor of the expert is missing")


def _left_over(place: Place) -> Malformed:
    name = place.prefix + ("experts.mystery" if place.checkpoint.recipe.fused else "weight_mystery")
    place.add(name, torch.ones(4), place.weight)
    return Malformed(place.file_of(name).name, (name,), "a tensor that belongs to no format is left over")


def _extra_expert(place: Place) -> Malformed:
    layer = list(place.checkpoint.layers)[1]
    new = ""
    for name, written in zip(place.checkpoint.recipe.family.names, place.checkpoint.layers[layer][1], strict=True):
        old = place.prefix.split("experts.1.")[0] + f"experts.1.{name}."
        new = old.replace("experts.1.", f"experts.{place.checkpoint.shape.experts}.")
        for suffix in written.tensors:
            place.add(new + suffix, place.tensor(old + suffix), place.weight)
    if _msmodelslim(place):
        kind = place.checkpoint.recipe.scheme.type
        place.change_json(place.description, lambda types: types | {new + suffix: kind for suffix in place.suffixes})
    beginning = new.rsplit(".", 2)[0] + "."
    return Malformed(place.file_of(place.weight).name, (beginning,), "an expert beyond the count of config.json")


def _one_expert_float(place: Place) -> Malformed:
    file = place.file_of(place.weight).name
    shape = place.checkpoint.shape
    plain = torch.full((shape.intermediate, shape.hidden), 0.5, dtype=torch.bfloat16)
    if "weight" in place.suffixes:
        place.change(place.prefix + "weight", lambda _: plain)
    else:
        place.add(place.prefix + "weight", plain, place.weight)
    for suffix in place.suffixes:
        if suffix != "weight":
            place.remove(place.prefix + suffix)
    if _msmodelslim(place):
        place.change_json(
            place.description,
            lambda types: (
                {k: v for k, v in types.items() if not k.startswith(place.prefix)} | {place.prefix + "weight": "FLOAT"}
            ),
        )
    return Malformed(file, (place.prefix,), "one projection of one expert is BF16, the others are quantised")


def _described(place: Place, types: dict[str, str], tensors: tuple[str, ...], what: str) -> Malformed:
    place.change_json(place.description, lambda old: old | types)
    return Malformed(place.description.name, tensors, what)


def _described_as_another(place: Place) -> Malformed:
    now = place.checkpoint.recipe.scheme.type
    other = {"W4A8_DYNAMIC": "W8A8_DYNAMIC", "W8A8_DYNAMIC": "W4A8_DYNAMIC", "W8A8_MXFP8": "W4A8_MXFP"}.get(
        now, "W8A8_MXFP8"
    )
    types = {place.prefix + suffix: other for suffix in place.suffixes}
    return _described(place, types, (place.prefix,), f"{now} tensors are described as {other}")


def _described_unknown(place: Place) -> Malformed:
    types = {place.prefix + suffix: "W3A3_MYSTERY" for suffix in place.suffixes}
    return _described(place, types, (place.prefix,), "the description has a type that nobody knows")


def _described_absent(place: Place) -> Malformed:
    name = place.prefix + "weight_elsewhere"
    types = {name: place.checkpoint.recipe.scheme.type}
    return _described(place, types, (name,), "the description lists a tensor that no file holds")


def _described_one_as_float(place: Place) -> Malformed:
    types = {place.prefix + suffix: "FLOAT" for suffix in place.suffixes}
    return _described(place, types, (place.prefix,), "quantised tensors are described as FLOAT")


def _no_mapping(place: Place) -> Malformed:
    place.description.write_text("[1, 2, 3]")
    return Malformed(place.description.name, (), "the description is no mapping")


def _version(place: Place) -> Malformed:
    place.change_json(place.description, lambda old: {k: v for k, v in old.items() if k != "version"})
    return Malformed(place.description.name, (place.weight,), "packed rows, but no version that says so")


def _tensor_fault(suffix: str, what: str, change: Callable[[Tensor], Tensor], visible: bool = True) -> Fault:
    def plant(place: Place) -> Malformed:
        name = place.named(suffix)
        place.change(name, change)
        return Malformed(place.file_of(name).name, (name,), what)

    return Fault(_has(suffix), plant, visible)


def _int4_in_bytes(place: Place) -> bool:
    return place.checkpoint.recipe.format in ("compressed-tensors-w4a8", "msmodelslim-w4a8-dynamic-old")


def _code_out_of_range(place: Place) -> Malformed:
    place.change(place.weight, _put(9))
    return Malformed(place.file_of(place.weight).name, (place.weight,), "a code of 9 where int4 ends at 7")


def _nan_code(place: Place) -> Malformed:
    place.change(place.weight, lambda w: _put(0x7F)(w.view(torch.uint8)).view(w.dtype))
    return Malformed(place.file_of(place.weight).name, (place.weight,), "an E4M3 code that is NaN")


def _more_experts(place: Place) -> Malformed:
    keys = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")

    def raise_count(config: dict[str, object]) -> dict[str, object]:
        return {key: place.checkpoint.shape.experts + 1 if key in keys else value for key, value in config.items()}

    place.change_json(place.folder / "config.json", raise_count)
    last = place.prefix.replace("experts.1.", f"experts.{place.checkpoint.shape.experts}.")
    return Malformed("config.json", (last,), "config.json states one expert more than the files hold")


TENSOR_FAULTS = {
    "weight-dtype": Fault(lambda place: place.tensor(place.weight).dtype in _OTHER_DTYPE, _weight_dtype),
    "weight-short": Fault(lambda place: len(place.tensor(place.weight).shape) == 2, _weight_short),
    "odd-packing": Fault(_four_bits, _odd_packing),
    "scale-dtype": Fault(
        _scaled,
        lambda place: _scale_of(place, "the scale is an int32", lambda s: torch.ones(s.shape, dtype=torch.int32)),
    ),
    "scale-short": Fault(
        lambda place: _scaled(place) and place.tensor(place.scale or "").numel() > 1,
        lambda place: _scale_of(place, "the scale lacks its last row", lambda s: s[:-1]),
    ),
    "scale-nan": Fault(_scaled, lambda place: _scale_of(place, "a scale is NaN", _nan)),
    "scale-zero": Fault(_float_scale, lambda place: _scale_of(place, "a scale is 0", _put(0.0))),
    "scale-negative": Fault(_float_scale, lambda place: _scale_of(place, "a scale is negative", _put(-0.5))),
    "scale-infinite": Fault(_float_scale, lambda place: _scale_of(place, "a scale is infinite", _put(float("inf")))),
    "code-nan": Fault(lambda place: place.tensor(place.weight).dtype == torch.float8_e4m3fn, _nan_code),
    "code-out-of-range": Fault(_int4_in_bytes, _code_out_of_range),
    "offset-not-zero": _tensor_fault("weight_offset", "a weight_offset is not zero", _put(1.0)),
    "scale-bias-wrong": _tensor_fault(
        "scale_bias", "scale_bias is not 8 * sum(code * scale)", lambda b: b * 1.25 + 1, False
    ),
    "weight-shape-wrong": _tensor_fault("weight_shape", "weight_shape names other sizes", lambda s: s.flip(0)),
    "g-idx-outside": _tensor_fault("g_idx", "g_idx names a group that is not there", _put(1000)),
    "weight-g-idx-outside": _tensor_fault("weight_g_idx", "g_idx names a group that is not there", _put(1000)),
    "tensor-missing": Fault(always, _missing),
    "tensor-left-over": Fault(always, _left_over, visible=False),
    "expert-left-over": Fault(lambda place: "experts.1." in place.prefix, _extra_expert),
    "expert-short-of-count": Fault(lambda place: "experts.1." in place.prefix, _more_experts, visible=False),
    "one-expert-float": Fault(lambda place: "experts.1." in place.prefix and _scaled(place), _one_expert_float),
}
"""Faults of tensors."""

DESCRIPTION_FAULTS = {
    "described-as-another": Fault(_msmodelslim, _described_as_another, visible=None),
    "described-unknown": Fault(_msmodelslim, _described_unknown),
    "described-absent": Fault(_msmodelslim, _described_absent, visible=False),
    "described-one-as-float": Fault(_msmodelslim, _described_one_as_float),
    "description-no-mapping": Fault(_msmodelslim, _no_mapping),
    "version-missing": Fault(lambda place: place.checkpoint.recipe.format == "msmodelslim-w4a8-dynamic", _version),
}
"""Faults of msModelSlim's description."""
