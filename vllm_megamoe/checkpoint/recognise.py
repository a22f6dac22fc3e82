"""Name the format of a checkpoint's experts from its config files alone.

Sources of the key names: the config files that the tools
write (compressed-tensors, transformers' fp8, ModelOpt, msModelSlim).
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MSMODELSLIM_FILES = ("quant_model_description.json", "quant_model_description_w8a8_dynamic.json")
MODELOPT_FILE = "hf_quant_config.json"
SIDE_FILES = (*MSMODELSLIM_FILES, MODELOPT_FILE)

BF16 = "bf16"

# How experts are called in checkpoints; used where the model's own names are not known yet.
_PREFIXES = ("model.layers.{i}.", "model.language_model.layers.{i}.", "language_model.model.layers.{i}.", "layers.{i}.")
_EXPERT_WEIGHT = re.compile(r"\.experts\.\d+\..*\.weight$")
_EXPERTS = ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "ffn.experts.0.w1", "moe.gate_proj")


def experts_format(
    quantization_config: Mapping[str, Any] | None,
    names: Sequence[str],
    side_files: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The format of the experts called `names`: `bf16`, or the name of another one for a message.

    Args:
        quantization_config: the section of config.json, None when there is none.
        names: module names of expert projections, such as `model.layers.0.mlp.experts.3.gate_proj`.
        side_files: parsed files of the checkpoint beside config.json, by name (see SIDE_FILES).
    """
    for file, content in (side_files or {}).items():
        found = _msmodelslim(content, names) if file in MSMODELSLIM_FILES else _modelopt(content, names)
        if found != BF16:
            return found
    if not quantization_config:
        return BF16
    method = str(quantization_config.get("quant_method", ""))
    if method == "megamoe":
        return BF16
    if method == "compressed-tensors":
        return _compressed_tensors(quantization_config, names)
    if method.startswith("modelopt"):
        return _modelopt(quantization_config, names)
    kept = _listed(quantization_config, ("modules_to_not_convert", "ignored_layers", "exclude"))
    quantised = [name for name in names if not any(_inside(name, entry) for entry in kept)]
    return _verdict(method or "an unnamed quantisation", names, quantised)


def surely_quantised(
    quantization_config: Mapping[str, Any] | None,
    num_layers: int,
    side_files: Mapping[str, Mapping[str, Any]] | None = None,
) -> str | None:
    """The experts' format when no usual naming style leaves them out of the quantisation, else None.

    For the time before the model's own names are known: it never refuses a checkpoint that may be fine.
    """
    for file in MSMODELSLIM_FILES:
        # This tool lists every tensor, so the experts name themselves.
        described = (side_files or {}).get(file, {})
        listed = [name.removesuffix(".weight") for name in described if _EXPERT_WEIGHT.search(name)]
        if (found := _msmodelslim(described, listed)) != BF16:
            return found
    layers = range(max(num_layers, 1))
    styles = [(p, e) for p in _PREFIXES for e in _EXPERTS]
    formats = [experts_format(quantization_config, [p.format(i=i) + e for i in layers]) for p, e in styles]
    return None if BF16 in formats or any("some of" in f for f in formats) else formats[0]


def _verdict(label: str, names: Sequence[str], quantised: Sequence[str]) -> str:
    if not quantised:
        return BF16
    if len(quantised) < len(names):
        return f"{label} for some of the experts ({quantised[0]} is quantised, others are not)"
    return label


def _compressed_tensors(config: Mapping[str, Any], names: Sequence[str]) -> str:
    ignore = _listed(config, ("ignore",))
    groups = config.get("config_groups", {}).values()
    labels: dict[str, str] = {}
    for name in names:
        if any(_matches(name, entry) for entry in ignore):
            continue
        for group in groups:
            if any(_matches(name, target) or target == "Linear" for target in group.get("targets", ())):
                labels[name] = str(group.get("format") or config.get("format", "?"))
    kinds = "/".join(sorted(set(labels.values())))
    return _verdict(f"compressed-tensors {kinds}", names, list(labels))


def _modelopt(config: Mapping[str, Any], names: Sequence[str]) -> str:
    section = config.get("quantization", config)
    algorithm = section.get("quant_algo")
    if not algorithm:
        return BF16
    exclude = _listed(section, ("exclude_modules", "ignore"))
    quantised = [n for n in names if not any(fnmatch.fnmatch(n, e) or _inside(n, e.rstrip("*")) for e in exclude)]
    return _verdict(f"ModelOpt {algorithm}", names, quantised)


def _msmodelslim(description: Mapping[str, Any], names: Sequence[str]) -> str:
    types = {name: str(description.get(f"{name}.weight", "FLOAT")) for name in names}
    kinds = "/".join(sorted({t for t in types.values() if t != "FLOAT"}))
    return _verdict(f"msModelSlim {kinds}", names, [n for n, t in types.items() if t != "FLOAT"])


def _listed(config: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [str(entry) for key in keys for entry in (config.get(key) or ())]


def _matches(name: str, entry: str) -> bool:
    """compressed-tensors' way to name modules: `re:` and a pattern, a full name, or a module that holds it."""
    if entry.startswith("re:"):
        return re.match(entry[3:], name) is not None
    return name == entry or name.startswith(entry + ".")


def _inside(name: str, entry: str) -> bool:
    """transformers' way: the entry is a run of whole components somewhere in the name."""
    entry = entry.strip(".")
    return bool(entry) and f".{entry}." in f".{name}."
