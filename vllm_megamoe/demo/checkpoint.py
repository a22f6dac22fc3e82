"""Write a random Qwen3-MoE checkpoint: `python -m vllm_megamoe.demo.checkpoint FOLDER`."""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from vllm_megamoe.demo.tokenizer import END_OF_TEXT, PAD, VOCABULARY_SIZE, make_tokenizer
from vllm_megamoe.demo.weights import fill

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
