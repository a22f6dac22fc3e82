"""What each tool's file says about one projection: one reader per tool, from the file's keys to an ExpertsFormat.

Sources of the key names: the files that the tools write, and the readers of those that vLLM 0.32 has
(model_executor/layers/quantization).
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.described import Described
from vllm_megamoe.checkpoint.formats import BF16, OWN_PREFIX, ExpertsFormat, format_named
from vllm_megamoe.checkpoint.names import Names, Patterns, compiled

Reader = Callable[[Names], ExpertsFormat]
"""From the names of one projection to its format."""

LEFT_OUT = ("modules_to_not_convert", "ignored_layers", "exclude", "ignore")


def everything_as(form: ExpertsFormat, section: Described, *left_out: str) -> Reader:
    """One format for all but the modules that a list leaves out."""
    kept = Patterns(section.names(*left_out), inside=True, place=section.place)
    return lambda names: BF16 if kept.match(names) else form


def modelopt_reader(section: Described) -> Reader:
    """NVIDIA ModelOpt: one algorithm for all, or a list of layers with an algorithm each (MIXED_PRECISION).

    Args:
        section: the quantization_config, or hf_quant_config.json with its `quantization` section.
    """
    section = section.part("quantization") if section.has("quantization") else section
    algorithm = section.text("quant_algo")
    if algorithm == "MIXED_PRECISION":
        return modelopt_layers(section)
    return everything_as(_modelopt(algorithm), section, "exclude_modules", "ignore")


def modelopt_layers(section: Described) -> Reader:
    """The format of one projection by `quantized_layers`, whose keys are projections or whole modules of experts."""
    table = {module: _modelopt(entry.text("quant_algo")) for module, entry in section.part("quantized_layers").parts()}

    def read(names: Names) -> ExpertsFormat:
        for name in names:
            parts = name.split(".")
            for end in range(len(parts), 0, -1):
                found = table.get(".".join(parts[:end]))
                if found is not None:
                    return found
        return BF16

    return read


# One scale a channel instead of one for all: the tensor's shape says it.
_SAME_ALGORITHM = {"FP8_PER_CHANNEL_PER_TOKEN": "FP8"}


def _modelopt(algorithm: str) -> ExpertsFormat:
    name = _SAME_ALGORITHM.get(algorithm, algorithm)
    return format_named("modelopt-" + name.lower().replace("_", "-")) if name else BF16


def fp8_reader(section: Described, expert_dtype: str = "") -> Reader:
    """transformers' fp8, per tensor or in blocks, and DeepSeek-V4's variant of it.

    Args:
        section: the quantization_config.
        expert_dtype: config.json's key of that name: DeepSeek-V4 keeps routed experts in `fp4` beside fp8 linears.
    """
    by_blocks = "fp8-block-ue8m0" if section.text("scale_fmt") == "ue8m0" else "fp8-block"
    plain = format_named(by_blocks if section.has("weight_block_size") else "fp8")
    # ModelOpt re-quantised the routed experts of some of these files and says so beside the original keys.
    over = modelopt_layers(section) if section.has("moe_quant_algo") else None
    left_out = Patterns(() if over else section.names(*LEFT_OUT), inside=True, place=section.place)

    def read(names: Names) -> ExpertsFormat:
        if over and (found := over(names)) != BF16:
            return found
        if left_out.match(names):
            return BF16
        routed = any(".experts." in name for name in names)
        return format_named("deepseek-v4-fp4") if expert_dtype == "fp4" and routed else plain

    return read


def mxfp8_reader(section: Described) -> Reader:
    """MiniMax-M3: e4m3 codes with e8m0 scales, named like fp8's."""
    return everything_as(format_named("mxfp8"), section, *LEFT_OUT)


def mxfp4_reader(section: Described) -> Reader:
    """gpt-oss: blocks of FP4 for all experts of a layer in one tensor."""
    return everything_as(format_named("gpt-oss-mxfp4"), section, *LEFT_OUT)


def gptq_reader(section: Described) -> Reader:
    """GPTQ: `dynamic` holds regular expressions, `-:` before those that are left out, else what differs there.

    `modules_in_block_to_quantize`, where it is there, names all that is quantised (auto_gptq.py).
    """
    rules = [
        (rule.startswith("-:"), compiled(rule.removeprefix("-:").removeprefix("+:"), section.place), own)
        for rule, own in section.part("dynamic").parts()
    ]
    kept = Patterns(section.names("modules_to_not_convert"), inside=True, place=section.place)
    only = Patterns(_flat(section), inside=True, place=section.place)

    def read(names: Names) -> ExpertsFormat:
        if kept.match(names) or (only and not only.match(names)):
            return BF16
        rule = next(((out, own) for out, pattern, own in rules if any(map(pattern.match, names))), None)
        if rule is None:
            return _integer("gptq", section)
        return BF16 if rule[0] else _integer("gptq", _over(section, rule[1]))

    return read


def _flat(section: Described) -> tuple[str, ...]:
    """Some files hold lists of lists of names."""
    value = section.values.get("modules_in_block_to_quantize") or []
    if not isinstance(value, list | tuple):
        raise section.wrong("modules_in_block_to_quantize", "a list of module names")
    return tuple(str(name) for part in value for name in (part if isinstance(part, list | tuple) else [part]))


def awq_reader(section: Described) -> Reader:
    """AWQ: a list of modules left out. Its zero points make even a scale per channel INT8, not INT4."""
    grouped = section.whole("q_group_size", "group_size", default=128) > 0
    return everything_as(format_named("awq-int4-group" if grouped else "awq-int4"), section, "modules_to_not_convert")


# AutoRound's `data_type` by bits, where it is no integer.
_FLOATS = {("mx_fp", 4): "mxfp4", ("mx_fp", 8): "mxfp8", ("nv_fp", 4): "nvfp4", ("fp", 8): "fp8"}
_UNQUANTISED_BITS = 16


def auto_round_reader(section: Described) -> Reader:
    """AutoRound: `extra_config` says per module where the bits differ; 16 bits mean left as it was.

    `block_name_to_quantize`, names with commas or a list, holds all that is quantised (inc.py).
    """
    extra = [
        (Patterns([_as_regex(key)], inside=True, place=section.place), _over(section, own))
        for key, own in section.part("extra_config").parts()
    ]
    named = section.values.get("block_name_to_quantize") or ()
    only = Patterns(
        named.split(",") if isinstance(named, str) else section.names("block_name_to_quantize"), True, section.place
    )

    def read(names: Names) -> ExpertsFormat:
        own = next((merged for pattern, merged in extra if pattern.match(names)), None)
        if own is None and only and not only.match(names):
            return BF16
        return _auto_round(own or section)

    return read


def _auto_round(section: Described) -> ExpertsFormat:
    kind, bits = section.text("data_type", "int"), section.whole("bits", default=4)
    if bits >= _UNQUANTISED_BITS:
        return BF16
    for (prefix, width), name in _FLOATS.items():
        if kind.startswith(prefix) and bits == width:
            return format_named(f"auto-round-{name}")
    return _integer("auto-round", section)


def _integer(tool: str, section: Described) -> ExpertsFormat:
    bits, zeros = section.whole("bits", default=4), section.values.get("sym", True) is False
    # Codes of 8 bits minus a zero point may need 9: no exact place for sure.
    in_groups = section.whole("group_size", default=-1) > 0 or (zeros and bits != 4)
    return format_named(f"{tool}-int{bits}" + ("-group" if in_groups else "-zeros" if zeros else ""))


def _over(section: Described, own: Described) -> Described:
    """The section with a module's own values in it."""
    return Described({**section.values, **own.values}, own.place)


def _as_regex(key: str) -> str:
    """AutoRound's keys are names or regular expressions."""
    return f"re:{key}" if any(sign in key for sign in "*\\[(|") else key


_MS_WEIGHTS = ("weight", "weight_packed")
"""The tensor of a projection that has its type: W4A16 packs codes as compressed-tensors does."""


def msmodelslim_reader(description: Mapping[str, Any]) -> Reader:
    """msModelSlim: a flat file that gives the type of every tensor; what it does not list is FLOAT.

    Keys of other things (`model_quant_type`, which may say another type than the experts', a KV cache's scales, a
    rotation that is folded into the weights) say nothing of the experts.
    """
    # The file's version tells how int4 codes are packed; without it, or with another, one code fills a byte.
    old = str(description.get("version", "")) != "1.0.0"

    def read(names: Names) -> ExpertsFormat:
        listed = listed_as(description, names)
        if listed is None or description[listed] == "FLOAT":
            return BF16
        kind, name = str(description[listed]), listed.rpartition(".")[0]
        form = "msmodelslim-" + kind.lower().replace("_", "-")
        if kind == "W4A8_DYNAMIC":
            form += "-old" if old else ""
            form += "-group" if f"{name}.weight_scale_second" in description else ""
        return format_named(form)

    return read


def listed_as(description: Mapping[str, Any], names: Names) -> str | None:
    """The key of msModelSlim's description that has a projection's type; None where it does not list the projection."""
    keys = (f"{name}.{weight}" for name in names for weight in _MS_WEIGHTS)
    return next((key for key in keys if key in description), None)


def quark_reader(section: Described) -> Reader:
    """AMD Quark: the layer's own scheme by pattern, else the global one, and names left out.

    `layer_type_quant_config` is not read: vLLM looks classes up in it where the file has their names (quark.py), and
    so takes the global scheme.
    """
    left_out = Patterns(section.names("exclude"), inside=True, place=section.place)
    own = [
        (Patterns([glob], inside=True, place=scheme.place), _quark(scheme))
        for glob, scheme in section.part("layer_quant_config").parts()
    ]
    otherwise = _quark(section.part("global_quant_config"))

    def read(names: Names) -> ExpertsFormat:
        if left_out.match(names):
            return BF16
        return next((form for pattern, form in own if pattern.match(names)), otherwise)

    return read


def _quark(scheme: Described) -> ExpertsFormat:
    stages = scheme.list_of_parts("weight")
    if not stages:
        return BF16
    if len(stages) > 1:
        # Codes that are scaled twice (NVFP4, int4 within fp8) are none of the formats with one scale.
        return format_named("quark " + " over ".join(_stage(stage) for stage in stages))
    weight = stages[0]
    dtype, grouped = weight.text("dtype"), weight.text("qscheme") == "per_group"
    if dtype == "fp4" and grouped:
        return format_named("quark-mxfp4")
    if dtype.startswith("fp8") and not grouped:
        return format_named("quark-fp8")
    return format_named("quark-int8" if dtype == "int8" and not grouped else f"quark {_stage(weight)}")


def _stage(weight: Described) -> str:
    return f"{weight.text('dtype')} {weight.text('qscheme')}".strip()


def own_reader(section: Described, source: Reader) -> Reader:
    """This package's own format: `layers` and `shared` name what was converted; all else is as it was.

    Args:
        source: the reader of what was converted from.
    """
    converted = {
        name: format_named(OWN_PREFIX + entry.text("use_case"))
        for part in ("layers", "shared")
        for name, entry in section.part(part).parts()
    }

    def read(names: Names) -> ExpertsFormat:
        experts = (name.rpartition(".experts.")[0] + ".experts" for name in names)
        modules = (name.rpartition(".")[0] for name in names)
        return next((converted[name] for name in (*experts, *modules) if name in converted), None) or source(names)

    return read
