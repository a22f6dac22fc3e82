"""Steps that load weights into a running engine: vLLM's own reload, and what a trainer calls."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.steps import own_teacher
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_megamoe.errors import MegaMoeError
from vllm_megamoe.testing.engines import model_of


def tensors_of(folder: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        found |= load_file(file)
    return found


def reload(llm: Any, folder: str) -> None:
    """vLLM's own: parameters as they were built, filled, processed, copied back."""
    llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})


def load(llm: Any, folder: str, only: str = "") -> None:
    """As a trainer does: the model's `load_weights` and nothing after it, here with the tensors of some names."""
    weights = {name: tensor for name, tensor in tensors_of(folder).items() if only in name}
    llm.apply_model(lambda model: model.load_weights(weights.items()))


def load_from_one_buffer(llm: Any, folder: str) -> None:
    """The same, each tensor in the memory of the one before: a trainer's bucket."""
    weights = tensors_of(folder)
    bucket = {tensor.dtype: tensor.new_empty(max(t.numel() for t in weights.values())) for tensor in weights.values()}

    def given() -> Any:
        for name, tensor in weights.items():
            place = bucket[tensor.dtype][: tensor.numel()].view(tensor.shape)
            yield name, place.copy_(tensor)
            place.zero_()

    llm.apply_model(lambda model: model.load_weights(given()))


def after(llm: Any, prompts: list[list[int]], what: Callable[[Any], None] | None = None) -> Any:
    """Tokens and the best log-probabilities after something was done to the engine."""
    if what is not None:
        what(llm)
    return own_teacher(llm, prompts, 4)


def refused(llm: Any, what: Callable[[Any], None]) -> str:
    """The words with which the next step would end after something was done to the engine; an error ends an engine."""
    what(llm)
    layers = [module for module in model_of(llm).modules() if hasattr(module, "mega_moe")]
    try:
        for layer in layers:
            layer.quant_method.check_loaded(layer)
    except MegaMoeError as error:
        return str(error)
    return ""


def addresses(llm: Any) -> list[int]:
    """Where the operands of this rank's MoE layers are."""
    from vllm_megamoe.layout.formatted import inner

    states = [module.mega_moe for module in model_of(llm).modules() if hasattr(module, "mega_moe")]
    return [inner(weight).data_ptr() for state in states for weight in (*state.operands.l1, *state.operands.l2)]


def with_rotated_experts(source: Path, folder: Path) -> Path:
    """A copy of a checkpoint in which each expert has the tensors of the one before it."""
    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors"):
        original, tensors = load_file(file), load_file(file)
        found = {name: re.search(r"\.experts\.(\d+)\.", name) for name in tensors}
        count = 1 + max((int(match[1]) for match in found.values() if match), default=0)
        for name, match in found.items():
            if match is not None:
                after = f".experts.{(int(match[1]) + 1) % count}."
                tensors[name.replace(match[0], after)] = original[name]
        save_file(tensors, file, metadata={"format": "pt"})
    return folder
