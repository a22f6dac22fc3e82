"""What stands in for parts of vLLM that a layer's construction touches and these tests do not need."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.models import registry
from vllm.transformers_utils import config as vllm_configs

from vllm_megamoe.lanes.quant_config import MegaMoeConfig


class NoKernel(FusedMoEMethodBase):
    """A method that holds no weights: vLLM's own one for the CPU rejects activations that it has no kernel for."""

    def create_weights(self, *arguments: Any, **named: Any) -> None:
        pass

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        pass

    def apply(self, *arguments: Any, **named: Any) -> None:
        raise NotImplementedError


class Absent(ModuleType):
    """A package that is not installed: image processors import it by name, no layer of a language model uses it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def pretend() -> None:
    """Let vLLM import and construct, on a machine without torchvision and CUDA, what it never calls here."""
    present = importlib.util.find_spec("torchvision") is not None
    for name in () if present else ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        module = Absent(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        sys.modules[name] = module
    torch.cuda.Event = type("Event", (), {})


def install() -> None:
    """Put all of them in place, once per process; our own method stays itself."""
    pretend()
    vllms_own = RoutedExperts._get_quant_method

    def method(layer: Any, prefix: str, quant_config: Any, moe_config: Any) -> Any:
        ours = isinstance(quant_config, MegaMoeConfig)
        return vllms_own(layer, prefix, quant_config, moe_config) if ours else NoKernel(moe_config)

    RoutedExperts._get_quant_method = method
    # vLLM looks at each model's class in a process of its own, which takes seconds for each; here it may import it.
    registry._run_in_subprocess = lambda look: look()


def know(model_type: str) -> None:
    """Give transformers a plain config class for a model whose own class comes with its checkpoint."""
    if model_type not in CONFIG_MAPPING and model_type not in vllm_configs._CONFIG_REGISTRY:
        # In this module by its name, so that a config that holds one can be pickled.
        globals()[model_type] = type(model_type, (PretrainedConfig,), {"model_type": model_type})
        AutoConfig.register(model_type, globals()[model_type])
