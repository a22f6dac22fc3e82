"""A model's layers under construction: which are MoE layers, and the method of each (vLLM 0.32)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat
from vllm_megamoe.checkpoint.recognise import experts_format
from vllm_megamoe.lanes.layer_facts import expert_names, read_layer, shared_names
from vllm_megamoe.lanes.moe_method import MegaMoeMethod
from vllm_megamoe.lanes.parallel_state import check_placement, read_seat
from vllm_megamoe.lanes.shared_experts import spare_fused, take_shared
from vllm_megamoe.lanes.startup import read_engine
from vllm_megamoe.layer import state
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer


def is_moe(layer: torch.nn.Module) -> bool:
    """Whether vLLM asks for the method of a MoE layer's experts."""
    return isinstance(layer, RoutedExperts)


def unquantised(layer: torch.nn.Module) -> UnquantizedLinearMethod | None:
    """The method of a layer that no quantisation names."""
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def watched(method: Any) -> Any:
    """The method of a layer without experts, which may turn out to be part of a shared MLP that is fused."""
    return spare_fused(method) if isinstance(method, UnquantizedLinearMethod) else method


@dataclass(frozen=True, slots=True)
class LiveLayer:
    """A MoE layer under construction: its plan without and with the runner that is built around it (Surroundings).

    Attributes:
        layer: the RoutedExperts.
        vllm_config: of the engine.
        section, side_files: what the checkpoint says about its quantisation.
    """

    layer: Any
    vllm_config: Any
    section: Mapping[str, Any] | None
    side_files: Mapping[str, Mapping[str, Any]]

    def plan(self, runner: Any = None) -> LayerPlan:
        """Plan from the live objects.

        Raises:
            ConfigError: with every violated rule.
        """
        names = shared_names(runner)
        facts = read_layer(
            self.layer,
            self._format(expert_names(self.layer)),
            runner,
            self._format(names) if names else BF16,
            self.vllm_config.model_config.hf_text_config,
        )
        parallel = self.layer.moe_config.moe_parallel_config
        engine = read_engine(self.vllm_config, sequence_parallel=parallel.is_sequence_parallel)
        return plan_layer(engine, facts, Options.parse(self.vllm_config.additional_config))

    def whole_plan(self) -> LayerPlan:
        return self.plan(self._runner())

    def take_shared(self, plan: LayerPlan) -> tuple[Tensor, Tensor]:
        return take_shared(self._runner(), plan)

    def _runner(self) -> Any:
        return self.vllm_config.compilation_config.static_forward_context[self.layer.layer_name]

    def _format(self, names: list[str]) -> ExpertsFormat:
        text_config = self.vllm_config.model_config.hf_text_config
        return experts_format(self.section, names, self.side_files, getattr(text_config, "expert_dtype", None) or "")


def moe_method(
    layer: Any, section: Mapping[str, Any] | None, side_files: Mapping[str, Mapping[str, Any]]
) -> MegaMoeMethod:
    """Plan a MoE layer from its live objects and make its method; no weight exists yet.

    Raises:
        ConfigError: with every violated rule.
    """
    live = LiveLayer(layer, get_current_vllm_config(), section, side_files)
    plan = live.plan()
    check_placement(layer)
    state.set_finder(_find)
    return MegaMoeMethod(layer.moe_config, plan, read_seat(layer.moe_config), live)


def _find(layer_name: str) -> LayerState:
    """The state of a layer in the engine whose forward pass is running."""
    state: LayerState = get_forward_context().no_compile_layers[layer_name].routed_experts.mega_moe
    return state
