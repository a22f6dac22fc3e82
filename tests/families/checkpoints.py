"""Random checkpoints in the names and shapes of the real ones, and what transformers makes of them in float32."""

import math
from pathlib import Path

import torch
from families.models import COMMON, Family
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ROUTER_GAIN = 3.0
"""Router logits are this far apart (standard deviation), so that no two experts come near a tie for the top-k."""


def make_checkpoint(family: Family, folder: Path, prompts: list[list[int]], seed: int = 5) -> Tensor:
    """Write a BF16 checkpoint, and return the log-probabilities that transformers computes from it.

    Returns:
        float32 [rows, vocabulary], for every prompt and each of its positions but the last.
    """
    config = AutoConfig.for_model(family.model_type, **(COMMON | family.settings))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _fill(model, seed)
    model.save_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows = [loaded(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1) for prompt in prompts]
    return torch.cat(rows)


def _fill(model: PreTrainedModel, seed: int) -> None:
    """Overwrite every tensor of the model; the same seed gives the same values."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(_values(name, tensor.shape, random))


def _values(name: str, shape: torch.Size, random: torch.Generator) -> Tensor:
    if "norm" in name.split(".")[-2]:
        return 1.0 + 0.1 * torch.randn(shape, generator=random)
    if "moe_statics" in name:
        # vLLM's router for CPUs leaves this bias out where there are no expert groups (Ernie), flag or no flag.
        return torch.zeros(shape)
    if len(shape) < 2 or name.endswith("e_score_correction_bias"):
        return 0.1 * torch.randn(shape, generator=random)
    values = torch.randn(shape, generator=random)
    if name.endswith("embed_tokens.weight"):
        return values
    values /= math.sqrt(shape[-1])
    if name.endswith((".gate.weight", ".router.weight")):
        return ROUTER_GAIN * values
    # Every expert, row and column has a scale of its own, so that one in the wrong place shows.
    for direction in range(len(shape)):
        scales = [size if d == direction else 1 for d, size in enumerate(shape)]
        values *= 0.5 + torch.rand(scales, generator=random)
    return values
