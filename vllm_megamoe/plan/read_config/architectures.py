"""From the name of a class to the family that reads its config, and to the releases of vLLM that have the class.

A class may be a language model, a multimodal one around it, or the MTP layers of one as a model of their own.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources

from vllm_megamoe.plan.read_config.families import FAMILIES
from vllm_megamoe.plan.read_config.family import Family

_BY_CLASS: dict[str, Family] = {name: family for family in FAMILIES for name in family.architectures}

WRAPPERS: dict[str, str] = {
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen4ExpForConditionalGeneration": "Qwen4ExpForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiK3ForConditionalGeneration": "KimiLinearForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV2ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "Glm5NextForConditionalGeneration": "Glm5NextForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3SparseForCausalLM",
    "InternS1ProForConditionalGeneration": "InternS1ProForCausalLM",
    "BailingMoeV3VLForConditionalGeneration": "BailingMoeV3ForCausalLM",
    "Step3VLForConditionalGeneration": "Step3TextForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p5ForCausalLM",
    "AriaForConditionalGeneration": "AriaTextForCausalLM",
}
"""The language model inside a multimodal one, which vLLM builds under `language_model.`."""

MTP_CLASSES: dict[str, str] = {
    "DeepSeekMTPModel": "DeepseekV3ForCausalLM",
    "DeepseekV32MTPModel": "DeepseekV32ForCausalLM",
    "DeepSeekV4MTPModel": "DeepseekV4ForCausalLM",
    "Glm4MoeMTPModel": "Glm4MoeForCausalLM",
    "Glm4MoeLiteMTPModel": "Glm4MoeLiteForCausalLM",
    "Glm5NextMTPModel": "Glm5NextForCausalLM",
    "KimiK3MTPModel": "KimiLinearForCausalLM",
    "OpenPanguMTPModel": "PanguUltraMoEForCausalLM",
    "HYV3MTPModel": "HYV3ForCausalLM",
    "Qwen3NextMTP": "Qwen3NextForCausalLM",
    "Qwen3_5MoeMTP": "Qwen3_5MoeForCausalLM",
    "Qwen4ExpMTP": "Qwen4ExpForCausalLM",
    "BailingMoeV25MTPModel": "BailingMoeV2_5ForCausalLM",
    "BailingMoeV3MTPModel": "BailingMoeV3ForCausalLM",
    "MiniMaxM3MTP": "MiniMaxM3SparseForCausalLM",
    "NemotronHMTPModel": "NemotronHForCausalLM",
}
"""The class that vLLM gives the MTP layers of a checkpoint (SpeculativeConfig.hf_config_override), and its family."""


def family_of(*architectures: str) -> Family | None:
    """The family of the first of these classes that a table knows."""
    for name in architectures:
        found = _BY_CLASS.get(WRAPPERS.get(name) or MTP_CLASSES.get(name) or name)
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class InVllm:
    """Which releases of vLLM have a class of some name.

    Attributes:
        releases: those of the table that have it.
        all_releases: those of the table.
        last: the last release that had it, where it was dropped earlier; empty where vLLM does not say.
    """

    releases: tuple[str, ...]
    all_releases: tuple[str, ...]
    last: str = ""


def in_vllm(architecture: str) -> InVllm:
    """Look a class up in the registries of the releases that this package meets (tools/write_tables.py)."""
    registries, dropped = _table()
    has = tuple(release for release, classes in registries.items() if architecture in classes)
    return InVllm(has, tuple(registries), dropped.get(architecture, ""))


@functools.cache
def _table() -> tuple[dict[str, list[str]], dict[str, str]]:
    table = json.loads(resources.files(__package__).joinpath("architectures.json").read_text(encoding="utf-8"))
    return dict(sorted(table["registries"].items())), table["dropped"]
