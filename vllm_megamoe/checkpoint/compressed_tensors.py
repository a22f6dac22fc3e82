"""compressed-tensors (llm-compressor): groups of targets with a scheme each, and a list of names left out."""

from collections.abc import Callable

from vllm_megamoe.checkpoint.described import Described
from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat, format_named
from vllm_megamoe.checkpoint.names import Names, Patterns


def compressed_tensors_reader(section: Described) -> Callable[[Names], ExpertsFormat]:
    """The format of one projection: that of the first group that targets it."""
    ignore = Patterns(section.names("ignore"), inside=False, place=section.place)
    groups = [
        (
            any("." not in target and not target.startswith("re:") for target in group.names("targets")),
            Patterns(group.names("targets"), inside=False, place=group.place),
            format_named(_scheme(group, group.text("format") or section.text("format"))),
        )
        for _, group in section.part("config_groups").parts()
    ]

    def read(names: Names) -> ExpertsFormat:
        if ignore.match(names):
            return BF16
        # A target without a dot is a class (`Linear`), and every projection of an expert is one.
        return next((scheme for by_class, names_it, scheme in groups if by_class or names_it.match(names)), BF16)

    return read


def _scheme(group: Described, packing: str) -> str:
    weights = group.part("weights")
    bits, kind, strategy = weights.whole("num_bits", default=0), weights.text("type", "int"), weights.text("strategy")
    in_groups = strategy in ("group", "tensor_group") and weights.whole("group_size", default=-1) > 0
    if kind == "float":
        return f"compressed-tensors-{_float(bits, strategy, weights, packing, in_groups)}"
    if kind == "int" and bits in (4, 8):
        acts = "a16" if group.values.get("input_activations") is None else "a8"
        zeros = weights.values.get("symmetric") is False
        if bits == 8 and (in_groups or zeros):
            # Codes of 8 bits minus a zero point may need 9: no exact place for sure.
            return "compressed-tensors-w8-group" if acts == "a16" else "compressed-tensors-w8a8-group"
        return f"compressed-tensors-w{bits}{acts}" + ("-group" if in_groups else "-zeros" if zeros else "")
    return f"compressed-tensors {packing or kind} of {bits} bits"


def _float(bits: int, strategy: str, weights: Described, packing: str, in_groups: bool) -> str:
    size = weights.whole("group_size", default=-1)
    if packing.startswith("nvfp4") or (bits == 4 and size == 16):
        return "nvfp4"
    if bits == 4:
        return "mxfp4"
    if packing.startswith("mxfp8") or (in_groups and size == 32):
        return "mxfp8"
    return "fp8-block" if strategy == "block" else "fp8"
