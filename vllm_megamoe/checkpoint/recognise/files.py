"""The files of a checkpoint that tell its formats, and which of them counts."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise import compressed_tensors, fp8, integer, modelopt, msmodelslim, quark
from vllm_megamoe.checkpoint.recognise.facts import BF16
from vllm_megamoe.checkpoint.recognise.lists import Patterns, listed
from vllm_megamoe.checkpoint.recognise.names import Names

MSMODELSLIM_FILES = ("quant_model_description.json", "quant_model_description_w8a8_dynamic.json")
MODELOPT_FILE = "hf_quant_config.json"
SIDE_FILES = (*MSMODELSLIM_FILES, MODELOPT_FILE)

Section = Mapping[str, Any]
SideFiles = Mapping[str, Mapping[str, Any]]
Reader = Callable[[Names], str]
"""From the names of one projection to its format."""

_METHODS: dict[str, Callable[[Section], Reader]] = {
    "compressed-tensors": compressed_tensors.reader,
    "mxfp8": fp8.mxfp8_reader,
    "mxfp4": fp8.mxfp4_reader,
    "gpt_oss_mxfp4": fp8.mxfp4_reader,
    "gptq": integer.gptq_reader,
    "gptq_marlin": integer.gptq_reader,
    "awq": integer.awq_reader,
    "awq_marlin": integer.awq_reader,
    "auto-round": integer.auto_round_reader,
    "intel/auto-round": integer.auto_round_reader,
    "inc": integer.auto_round_reader,
    "quark": quark.reader,
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
            return msmodelslim.reader(files[name])
    if section:
        return _of_section(section, expert_dtype)
    if files.get(MODELOPT_FILE):
        return modelopt.reader(files[MODELOPT_FILE])
    return lambda names: BF16


def _of_section(section: Section, expert_dtype: str) -> Reader:
    method = str(section.get("quant_method", ""))
    if method == "megamoe":
        return lambda names: BF16
    if method in _METHODS:
        return _METHODS[method](section)
    if method in _FP8:
        return fp8.reader(section, expert_dtype)
    if method.startswith("modelopt") or section.get("quant_algo"):
        return modelopt.reader(section)
    left_out = Patterns(listed(section, *fp8.LEFT_OUT), inside=True)
    return lambda names: BF16 if left_out.match(names) else method or "an unnamed quantisation"
