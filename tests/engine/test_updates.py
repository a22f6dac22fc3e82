"""Weights that change under a running engine of two ranks: a layer alone, and all of them after sleep of level 2.

vLLM's CPU platform refuses sleep mode. What level 2 does to a worker is done here by hand: the memory of the weights
stays where it is and loses its contents, then they are loaded again (vllm/device_allocator/cumem.py: `discard` and
`wake_up`). Level 1 brings the bytes back itself. Under vllm-ascend both run in tests/contract/test_sleep.py.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import EAGER, MEGAMOE, TP2, Engines, Prompts
from engine.reloading import addresses, after, load, reload, tensors_of
from safetensors.torch import save_file

from vllm_megamoe.testing.engines import model_of

pytestmark = [pytest.mark.engine, pytest.mark.full]

OPTIONS = {"additional_config": {"megamoe": {"use_case": "a8w8-int", "requant": "allow"}}}
GARBAGE = 0xA5


def operand_tensors(llm: Any) -> list[torch.Tensor]:
    """All that the operator reads of this rank's experts."""
    from vllm_megamoe.layout.formatted import inner

    found = []
    for module in model_of(llm).modules():
        if hasattr(module, "mega_moe"):
            operands = module.mega_moe.operands
            for name in ("l1", "l2", "l1_sf", "l2_sf", "l1_bias", "l2_bias"):
                found += [inner(tensor) for tensor in getattr(operands, name) or ()]
    return found


def bytes_of(llm: Any) -> list[bytes]:
    return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in operand_tensors(llm)]


def fall_asleep_and_wake(llm: Any, folder: str) -> None:
    """As level 2: the experts' memory is there and means nothing, until all weights are loaded again."""
    tensors = operand_tensors(llm)
    assert len(tensors) >= 2 * 2 * 4
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(GARBAGE)
    reload(llm, folder)


@pytest.fixture(scope="module")
def others(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model with other weights (B), and B with layer 0 of the shared checkpoint (M)."""
    from vllm_megamoe.demo.checkpoint import make_checkpoint

    tmp = tmp_path_factory.mktemp("updates")
    other = str(make_checkpoint(tmp / "other", seed=2))
    mixed = tmp / "mixed"
    shutil.copytree(other, mixed)
    for file in mixed.glob("*.safetensors*"):
        file.unlink()
    first = {name: tensor for name, tensor in tensors_of(checkpoint).items() if "layers.0." in name}
    save_file(tensors_of(other) | first, Path(mixed) / "model.safetensors", metadata={"format": "pt"})
    return {"B": other, "M": str(mixed)}


@pytest.fixture(scope="module")
def found(engines: Engines, checkpoint: str, others: dict[str, str], prompts: Prompts) -> dict[str, Any]:
    """By weights or step: answers and the operands' bytes, on each rank."""
    llm = {**MEGAMOE, **TP2, **EAGER, **OPTIONS, "enable_prefix_caching": False}
    ask = partial(after, prompts=prompts[:4])
    seen: dict[str, Any] = {}
    for name, folder in {"A": checkpoint, **others}.items():
        seen[name] = engines.run({"model": folder, **llm}, [ask, bytes_of])
    steps = {
        "B": partial(reload, folder=others["B"]),
        "M": partial(load, folder=checkpoint, only="layers.0."),
        "A": partial(fall_asleep_and_wake, folder=checkpoint),
    }
    run = [addresses]
    for step in steps.values():
        run += [partial(ask, what=step), bytes_of]
    changed = engines.run({"model": checkpoint, **llm}, [*run, addresses])
    seen["where"] = [(rank[0], rank[-1]) for rank in changed]
    seen["changed"] = {name: [rank[1 + 2 * n : 3 + 2 * n] for rank in changed] for n, name in enumerate(steps)}
    return seen


@pytest.mark.parametrize("weights", ["B", "M", "A"])
def test_answers_and_bytes_are_those_of_a_fresh_start(weights: str, found: dict[str, Any]) -> None:
    """B by vLLM's reload, M by a trainer that sends layer 0 alone, A after sleep of level 2."""
    assert found["changed"][weights] == found[weights]
    assert found["A"] != found["B"] != found["M"] != found["A"]


def test_operands_stay_where_they_are(found: dict[str, Any]) -> None:
    for before, afterwards in found["where"]:
        assert before == afterwards
