"""LoRA beside the operator: adapters of every layer but the experts work, those of experts are rejected by name.

The oracle is a checkpoint into which an adapter was merged by its formula, W + alpha / r * B A (Hu et al. 2021, section
4.1), served without LoRA: the same tokens in float32, where the closest pair of candidates is further apart than the
order of sums can move them (see test_float32).
"""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import EAGER, FLOAT32, MEGAMOE, TP2, Engines, Prompts
from engine.reloading import tensors_of
from engine.steps import greedy
from safetensors.torch import save_file
from torch import Tensor

pytestmark = [pytest.mark.engine, pytest.mark.full]

RANK, ALPHA = 8, 16
SELF_ATTENTION = "model.layers.1.self_attn"


def make_adapter(folder: Path, weights: dict[str, Tensor], modules: list[str]) -> dict[str, Tensor]:
    """A PEFT adapter of random matrices for some modules; what it adds to each weight."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    tensors, added = {}, {}
    for module in modules:
        rows, columns = weights[f"{module}.weight"].shape
        a = torch.randn(RANK, columns, generator=generator) / columns**0.5
        b = torch.randn(rows, RANK, generator=generator) / RANK**0.5 / 4
        tensors |= {f"base_model.model.{module}.lora_{part}.weight": t for part, t in (("A", a), ("B", b))}
        added[f"{module}.weight"] = ALPHA / RANK * b @ a
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    config["target_modules"] = sorted({module.rpartition(".")[2] for module in modules})
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return added


def merge(source: str, folder: Path, added: dict[str, Tensor]) -> str:
    """A copy of a checkpoint with something added to some weights; as float32, so that nothing is rounded."""
    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    found = {name: (t.float() + added[name]) if name in added else t for name, t in tensors_of(source).items()}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def with_adapter(llm: Any, prompts: Prompts, folder: str) -> list[list[int]]:
    """Tokens after each prompt under an adapter, greedily."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    given = [{"prompt_token_ids": p} for p in prompts]
    name = Path(folder).name
    outputs = llm.generate(given, params, use_tqdm=False, lora_request=LoRARequest(name, len(name), folder))
    return [list(output.outputs[0].token_ids) for output in outputs]


def rejected(llm: Any, folder: str) -> str:
    """What is said to a request under an adapter."""
    from vllm.lora.request import LoRARequest

    try:
        llm.llm_engine.add_lora(LoRARequest("bad", 99, folder))
    except Exception as error:  # its kind is judged by the test
        return f"{type(error).__name__}: {error}"
    return "taken"


@pytest.fixture(scope="module")
def folders(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tmp, weights = tmp_path_factory.mktemp("lora"), tensors_of(checkpoint)
    parts = [f"{SELF_ATTENTION}.{part}_proj" for part in "qkvo"]
    added = make_adapter(tmp / "attention", weights, [*parts, "model.layers.0.mlp.gate"])
    make_adapter(tmp / "experts", weights, [*parts, "model.layers.1.mlp.experts.3.up_proj"])
    return {
        "attention": str(tmp / "attention"),
        "experts": str(tmp / "experts"),
        "merged": merge(checkpoint, tmp / "merged", added),
    }


@pytest.fixture(scope="module")
def answers(engines: Engines, checkpoint: str, folders: dict[str, str], prompts: Prompts) -> list[list[Any]]:
    """On each rank: without an adapter, with one, what an adapter of experts gets, and without one again."""
    llm = {"model": checkpoint, **FLOAT32, **MEGAMOE, **TP2, **EAGER, "enable_lora": True, "max_lora_rank": RANK}
    plain = partial(greedy, prompts=prompts[:16], max_tokens=8)
    steps = [
        plain,
        partial(with_adapter, prompts=prompts[:16], folder=folders["attention"]),
        partial(rejected, folder=folders["experts"]),
        plain,
    ]
    return engines.run(llm, steps)


def test_an_adapter_of_attention_and_router_gives_the_merged_models_tokens(
    answers: list[list[Any]], engines: Engines, folders: dict[str, str], prompts: Prompts
) -> None:
    ask = partial(greedy, prompts=prompts[:16], max_tokens=8)
    merged = engines.run({"model": folders["merged"], **FLOAT32, **MEGAMOE, **EAGER}, [ask])[0][0]
    for plain, adapted, _, _ in answers:
        assert adapted == merged
        assert adapted != plain


def test_requests_without_an_adapter_are_as_without_lora(
    answers: list[list[Any]], engines: Engines, checkpoint: str, prompts: Prompts
) -> None:
    baseline = engines.float32_baseline(checkpoint, prompts)[0][:16]
    for plain, _, _, again in answers:
        assert plain == again == baseline


def test_b57_an_adapter_of_experts_is_rejected_by_name(answers: list[list[Any]]) -> None:
    for _, _, said, _ in answers:
        assert said.startswith("ConfigError: LoRA adapter 'bad'")
        assert "model.layers.1.mlp.experts.3.up_proj" in said
        assert "merge them into the checkpoint" in said
