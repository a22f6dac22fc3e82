"""compressed-tensors (llm-compressor): groups of targets with a scheme each, and a list of names left out."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.checkpoint.names import Names, Patterns, listed
from vllm_megamoe.errors import ConfigError


def compressed_tensors_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection: that of the first group that targets it."""
    ignore = Patterns(listed(section, "ignore"), inside=False)
    groups = [
        (
            any("." not in target and not target.startswith("re:") for target in listed(group, "targets")),
            Patterns(listed(group, "targets"), inside=False),
            _scheme(group, str(group.get("format") or section.get("format") or "")),
        )
        for group in map(_object, _object(section.get("config_groups") or {}).values())
    ]

    def read(names: Names) -> str:
        if ignore.match(names):
            return BF16
        # A target without a dot is a class (`Linear`), and every projection of an expert is one.
        return next((scheme for by_class, names_it, scheme in groups if by_class or names_it.match(names)), BF16)

    return read


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise ConfigError(
        f"The quantisation's config: {value!r} within config_groups; expected an object. Correct the file."
    )


def _scheme(group: Mapping[str, Any], packing: str) -> str:
    weights, inputs = _object(group.get("weights") or {}), group.get("input_activations")
    bits, kind, strategy = weights.get("num_bits"), weights.get("type", "int"), weights.get("strategy")
    in_groups = strategy in ("group", "tensor_group") and int(weights.get("group_size") or -1) > 0
    if kind == "float":
        return f"compressed-tensors-{_float(bits, strategy, weights, packing, in_groups)}"
    if kind == "int" and bits in (4, 8):
        acts = "a16" if inputs is None else "a8"
        if bits == 8:
            return "compressed-tensors-w8-group" if in_groups else f"compressed-tensors-w8{acts}"
        lossy = in_groups or weights.get("symmetric") is False
        return f"compressed-tensors-w4{acts}" + ("-group" if lossy else "")
    return f"compressed-tensors {packing or kind} of {bits} bits"


def _float(bits: object, strategy: object, weights: Mapping[str, Any], packing: str, in_groups: bool) -> str:
    if packing.startswith("nvfp4") or (bits == 4 and weights.get("group_size") == 16):
        return "nvfp4"
    if bits == 4:
        return "mxfp4"
    if packing.startswith("mxfp8") or (in_groups and weights.get("group_size") == 32):
        return "mxfp8"
    return "fp8-block" if strategy == "block" else "fp8"
