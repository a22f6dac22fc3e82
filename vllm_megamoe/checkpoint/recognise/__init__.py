"""Name the format of a checkpoint's experts from its config files alone.

Sources of the key names: the files that the tools write (compressed-tensors, transformers' fp8, ModelOpt,
msModelSlim, AutoRound, GPTQ, AWQ, Quark), and the readers of those that vLLM 0.32 has.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_megamoe.checkpoint.recognise.facts import BF16, FORMATS, FormatFacts, format_facts
from vllm_megamoe.checkpoint.recognise.files import (
    MODELOPT_FILE,
    MSMODELSLIM_FILES,
    SIDE_FILES,
    Section,
    SideFiles,
    make_reader,
    section_of,
)
from vllm_megamoe.checkpoint.recognise.names import names_of, projections_of
from vllm_megamoe.checkpoint.recognise.verdict import verdict

__all__ = [
    "BF16",
    "FORMATS",
    "MODELOPT_FILE",
    "MSMODELSLIM_FILES",
    "SIDE_FILES",
    "FormatFacts",
    "experts_format",
    "format_facts",
    "formats_of",
    "section_of",
    "surely_quantised",
]

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

    For the time before the model's own names are known: it never refuses a checkpoint that may be fine.
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
