"""The table of families, and the multimodal models that hold one of them."""

from vllm_megamoe.plan.read_config.families import deepseek, plain, qwen, shared
from vllm_megamoe.plan.read_config.family import Family

FAMILIES: tuple[Family, ...] = (*deepseek.FAMILIES, *qwen.FAMILIES, *plain.FAMILIES, *shared.FAMILIES)

BY_ARCHITECTURE: dict[str, Family] = {name: family for family in FAMILIES for name in family.architectures}

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
