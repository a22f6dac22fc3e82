"""The demo's checkpoint: `python -m vllm_megamoe.demo.checkpoint FOLDER` writes a random Qwen3-MoE.

The weights are random, with the traits that make a comparison of two MoE implementations worth something:

- Experts differ in scale, and so do their rows and columns: an expert, a row or a scale in the wrong place shows.
- The MoE's output is as large as the rest of the residual stream: a wrong MoE shows in the logits.
- Two experts never come close to a tie for a token's top-k. A near-tie goes one way or the other by the last bit of
  bf16, which changes the logits of two correct implementations at random. So the first `num_experts` hidden channels
  hold the token's preferences, a whole step apart from each other; the router reads them, and nothing writes to them.
"""

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from vllm_megamoe.testing.tokenizer import END_OF_TEXT, PAD, VOCABULARY_SIZE, make_tokenizer

PREFERENCE_STEP = 0.4
ROUTER_GAIN = 4.0
ROUTER_NOISE = 0.1
RESIDUAL_SHARE = 0.5
LOGIT_STD = 1.0
MOE_SHARE = 0.5


def fill(model: PreTrainedModel, seed: int) -> None:
    """Overwrite every parameter of the model; the same seed gives the same values."""
    random = torch.Generator().manual_seed(seed)
    experts = model.config.num_experts
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_values(name, parameter.shape, experts, random))


def _values(name: str, shape: torch.Size, experts: int, random: torch.Generator) -> torch.Tensor:
    if name.endswith("norm.weight"):
        values = 1.0 + 0.1 * torch.randn(shape, generator=random)
        values[:experts] = 1.0
        return values
    if name.endswith("embed_tokens.weight"):
        return _embedding(shape, experts, random)
    if name.endswith("mlp.gate.weight"):
        return _router(shape, random)
    if ".experts." in name:
        return _experts(name, shape, random)
    values = torch.randn(shape, generator=random) / math.sqrt(shape[-1])
    if name.endswith("lm_head.weight"):
        return values * LOGIT_STD
    if name.endswith("o_proj.weight"):
        values *= RESIDUAL_SHARE
        values[:experts] = 0
    return values


def _embedding(shape: torch.Size, experts: int, random: torch.Generator) -> torch.Tensor:
    """[vocabulary, hidden]: unit normal, and in the first channels each token's preferences."""
    values = torch.randn(shape, generator=random)
    popularity = torch.linspace(-1.0, 1.0, experts)
    wishes = torch.randn(shape[0], experts, generator=random) + popularity
    values[:, :experts] = PREFERENCE_STEP * (wishes.argsort(-1).argsort(-1) - (experts - 1) / 2)
    return values


def _router(shape: torch.Size, random: torch.Generator) -> torch.Tensor:
    """[experts, hidden]: reads the preferences in an order of its own, and a little of everything else."""
    experts = shape[0]
    values = ROUTER_NOISE * torch.randn(shape, generator=random) / math.sqrt(shape[-1])
    order = torch.randperm(experts, generator=random)
    values[:, :experts] = ROUTER_GAIN * torch.eye(experts)[order]
    return values


def _experts(name: str, shape: torch.Size, random: torch.Generator) -> torch.Tensor:
    """[experts, rows, columns]: uneven in all directions, by up to 2 times between experts, 4 within one."""
    experts, rows, columns = shape
    values = torch.randn(shape, generator=random) / math.sqrt(columns)
    for direction, octaves in (((experts, 1, 1), 1), ((experts, rows, 1), 2), ((experts, 1, columns), 2)):
        values *= 2.0 ** (octaves * (torch.rand(direction, generator=random) - 0.5))
    if name.endswith("down_proj"):
        values *= MOE_SHARE
        values[:, :experts] = 0
    return values


MAX_LENGTH = 2048


def make_checkpoint(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
    """Write config, weights and tokenizer to `folder`, which must not exist, and return it.

    The model has a real architecture (Qwen3MoeForCausalLM: hidden 1024, moe_intermediate 1024, 8 experts, top-2,
    2 layers) and random weights in `dtype`. `changes` are keyword arguments of Qwen3MoeConfig. The folder appears when
    it is whole: an interrupted run leaves only `<folder>.part`, which the next one replaces.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(_config(**changes), dtype=dtype)
    fill(model, seed)
    model.save_pretrained(part)
    make_tokenizer(MAX_LENGTH).save_pretrained(part)
    part.rename(folder)
    return folder


def _config(**changes: Any) -> Qwen3MoeConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 1024,
        "moe_intermediate_size": 1024,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": MAX_LENGTH,
        "eos_token_id": END_OF_TEXT,
        "bos_token_id": None,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
    }
    return Qwen3MoeConfig(**(settings | changes))


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]))
