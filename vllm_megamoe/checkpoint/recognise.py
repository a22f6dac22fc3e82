"""The files of a checkpoint that tell its formats, and which of them counts.

One word for a layer's experts, from the format of each of their projections.

Name the format of a checkpoint's experts from its config files alone.

Sources of the key names: the files that the tools write (compressed-tensors, transformers' fp8, ModelOpt,
msModelSlim, AutoRound, GPTQ, AWQ, Quark), and the readers of those that vLLM 0.32 has.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_megamoe.checkpoint import compressed_tensors, readers
from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.checkpoint.names import Names, Patterns, listed, names_of, projections_of

MSMODELSLIM_FILES = ("quant_model_description.json", "quant_model_description_w8a8_dynamic.json")
MODELOPT_FILE = "hf_quant_config.json"
SIDE_FILES = (*MSMODELSLIM_FILES, MODELOPT_FILE)

Section = Mapping[str, Any]
SideFiles = Mapping[str, Mapping[str, Any]]
Reader = Callable[[Names], str]
"""From the names of one projection to its format."""

_METHODS: dict[str, Callable[[Section], Reader]] = {
    "compressed-tensors": compressed_tensors.compressed_tensors_reader,
    "mxfp8": readers.mxfp8_reader,
    "mxfp4": readers.mxfp4_reader,
    "gpt_oss_mxfp4": readers.mxfp4_reader,
    "gptq": readers.gptq_reader,
    "gptq_marlin": readers.gptq_reader,
    "awq": readers.awq_reader,
    "awq_marlin": readers.awq_reader,
    "auto-round": readers.auto_round_reader,
    "intel/auto-round": readers.auto_round_reader,
    "inc": readers.auto_round_reader,
    "quark": readers.quark_reader,
}
_FP8 = ("fp8", "deepseek_v4_fp8")


def section_of(config: Mapping[str, Any]) -> Section | None:
    """The quantization_config of config.json, of the whole model or of a section such as `text_config`."""
    found = config.get("quantization_config")
    if isinstance(found, Mapping) and found:
        return found
    parts = (part for key, part in config.items() if key.endswith("_config") and isinstance(part, Mapping))
    return next((s for part in parts if isinstance(s := part.get("quantization_config"), Mapping) and s), None)


def make_reader(section: Section | None, side_files: SideFiles | None, expert_dtype: str = "") -> Reader:
    """The reader of the file that counts: msModelSlim's, else quantization_config, else ModelOpt's, else BF16."""
    files = side_files or {}
    for name in MSMODELSLIM_FILES:
        if files.get(name):
            return readers.msmodelslim_reader(files[name])
    if section:
        return _of_section(section, expert_dtype)
    if files.get(MODELOPT_FILE):
        return readers.modelopt_reader(files[MODELOPT_FILE])
    return lambda names: BF16


def _of_section(section: Section, expert_dtype: str) -> Reader:
    method = str(section.get("quant_method", ""))
    if method == "megamoe":
        return lambda names: BF16
    if method in _METHODS:
        return _METHODS[method](section)
    if method in _FP8:
        return readers.fp8_reader(section, expert_dtype)
    if method.startswith("modelopt") or section.get("quant_algo"):
        return readers.modelopt_reader(section)
    left_out = Patterns(listed(section, *readers.LEFT_OUT), inside=True)
    return lambda names: BF16 if left_out.match(names) else method or "an unnamed quantisation"


def verdict(found: Mapping[str, str]) -> str:
    """The one format of all, or a sentence that names the difference; `bf16` for none at all.

    Args:
        found: the format by projection.
    """
    kinds = sorted(set(found.values()) - {BF16})
    if not kinds:
        return BF16
    if BF16 in found.values():
        first = next(name for name, kind in found.items() if kind != BF16)
        return f"{'/'.join(kinds)} for some of the experts ({first} is quantised, others are not)"
    return kinds[0] if len(kinds) == 1 else f"{' and '.join(kinds)}, each for a part of the experts"


# How experts are called in checkpoints; used where the model's own names are not known yet.
_STYLES = ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "ffn.experts.0.w1", "moe.gate_proj")
_PREFIXES = ("model.layers.{i}.", "model.language_model.layers.{i}.", "language_model.model.layers.{i}.", "layers.{i}.")
_EXPERT_WEIGHT = re.compile(r"\.experts\.\d+\..*\.weight$")
_EXPERT_NUMBER = re.compile(r"experts\\?\.(\d+)\\?\.")


def experts_format(
    quantization_config: Section | None,
    names: Sequence[str],
    side_files: SideFiles | None = None,
    expert_dtype: str = "",
) -> str:
    """The name of the format of the experts called `names`: `bf16`, or another one that `format_facts` explains.

    Args:
        quantization_config: the section of config.json, None when there is none.
        names: module names of expert projections, such as `model.layers.0.mlp.experts.3.gate_proj`.
        side_files: parsed files of the checkpoint beside config.json, by name (see SIDE_FILES).
        expert_dtype: config.json's key of that name (DeepSeek-V4).
    """
    read = make_reader(quantization_config, side_files, expert_dtype)
    return verdict({name: read(names_of(name)) for name in names})


def formats_of(config: Mapping[str, Any], side_files: SideFiles | None = None) -> Callable[[str], str]:
    """A function from the prefix of a layer's experts, or of its shared MLP, to the name of their format.

    Args:
        config: config.json as a mapping.
        side_files: parsed files of the checkpoint beside config.json, by name (see SIDE_FILES).
    """
    section, files = section_of(config), side_files or {}
    text = config.get("text_config")
    parts = [part for part in (text, config, section) if isinstance(part, Mapping)]
    read = make_reader(section, files, str(_first(parts, "expert_dtype") or ""))
    num_layers = _first(parts, "num_hidden_layers")
    # Experts that a file names one by one are asked one by one; of all others the first speaks.
    numbers = sorted({0, *(int(n) for n in _EXPERT_NUMBER.findall(json.dumps([section, files], default=str)))})

    def format_of(prefix: str) -> str:
        return verdict({names[0]: read(names) for names in projections_of(prefix, numbers, num_layers)})

    return format_of


def _first(parts: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((part[key] for part in parts if part.get(key)), None)


def surely_quantised(
    quantization_config: Section | None, num_layers: int, side_files: SideFiles | None = None
) -> str | None:
    """The experts' format when no usual naming style leaves them out of the quantisation, else None.

    For the time before the model's own names are known: it never rejects a checkpoint that may be fine.
    """
    for file in MSMODELSLIM_FILES:
        # This tool lists every tensor, so the experts name themselves.
        described = (side_files or {}).get(file, {})
        listed = [name.removesuffix(".weight") for name in described if _EXPERT_WEIGHT.search(name)]
        if (found := experts_format(None, listed, {file: described})) != BF16:
            return found
    layers = range(max(num_layers, 1))
    styles = [(p, e) for p in _PREFIXES for e in _STYLES]
    formats = [experts_format(quantization_config, [p.format(i=i) + e for i in layers]) for p, e in styles]
    return None if BF16 in formats or any("some of" in f for f in formats) else formats[0]
