"""The demo's checkpoint: a real architecture, the same bytes every time, weights that a comparison can use."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from vllm_megamoe.demo.checkpoint import make_checkpoint

SMALL = {"hidden_size": 128, "moe_intermediate_size": 96, "head_dim": 32, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small", **SMALL)


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_has_the_shape_that_is_promised(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = json.loads((make_checkpoint(tmp_path_factory.mktemp("full") / "c") / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert (config["hidden_size"], config["moe_intermediate_size"], config["num_hidden_layers"]) == (1024, 1024, 2)
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (8, 2)
    assert config["dtype"] == "bfloat16"


def test_experts_are_stored_one_by_one(weights: dict[str, torch.Tensor]) -> None:
    for expert in range(8):
        prefix = f"model.layers.1.mlp.experts.{expert}."
        assert weights[prefix + "gate_proj.weight"].shape == (96, 128)
        assert weights[prefix + "down_proj.weight"].shape == (128, 96)
        assert weights[prefix + "up_proj.weight"].dtype == torch.bfloat16


def test_a_seed_decides_every_byte(folder: Path, tmp_path: Path) -> None:
    again = make_checkpoint(tmp_path / "again", **SMALL)
    other = make_checkpoint(tmp_path / "other", seed=1, **SMALL)
    expected = (folder / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == expected
    assert (other / "model.safetensors").read_bytes() != expected


def test_what_a_broken_off_run_left_is_replaced(folder: Path, tmp_path: Path) -> None:
    part = tmp_path / "c.part"
    part.mkdir()
    (part / "stale.safetensors").write_text("half")
    made = make_checkpoint(tmp_path / "c", **SMALL)
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert not part.exists()


def test_a_token_is_a_byte(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Hé\n\t~"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer) == 260


def test_no_token_comes_near_a_tie_for_its_experts(weights: dict[str, torch.Tensor]) -> None:
    """Router logits of each token's own embedding: the second and the third expert are most of a step apart.

    The step is the gain 4 times the spacing 0.4 of the preferences, over an rms that is 1 for the embedding's unit
    normal values (within 25 % at this width); the router's other 120 columns add noise of 0.1.
    """
    embedding = weights["model.embed_tokens.weight"].double()
    normal = embedding / embedding.pow(2).mean(-1, keepdim=True).sqrt()
    for layer in range(2):
        norm = weights[f"model.layers.{layer}.post_attention_layernorm.weight"].double()
        logits = (normal * norm) @ weights[f"model.layers.{layer}.mlp.gate.weight"].double().T
        ordered = logits.sort(-1, descending=True).values
        assert (ordered[:, 1] - ordered[:, 2]).min() > 0.5


def test_nothing_writes_to_the_channels_that_the_router_reads(weights: dict[str, torch.Tensor]) -> None:
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            assert not value[:8].any(), name
            assert value[8:].any(dim=-1).all(), name


def test_experts_differ_in_scale(weights: dict[str, torch.Tensor]) -> None:
    for layer in range(2):
        for projection in ("gate", "up", "down"):
            names = [f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight" for expert in range(8)]
            norms = torch.tensor([weights[name].double().norm() for name in names])
            assert norms.max() / norms.min() > 1.3
            rows = weights[names[0]].double()[8:].norm(dim=1)
            assert rows.max() / rows.min() > 2
