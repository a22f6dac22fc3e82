"""A model's layers as vLLM builds them: the method of each, and for a MoE layer its plan, confirmed by what it shows.

vLLM asks for a layer's method while it builds RoutedExperts; the MoERunner around it, which alone knows the shared
experts and a factor on the output, comes a moment later. So a layer is compared with its plan twice: without its
runner, to reject before weights exist, and with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.utils.import_utils import resolve_obj_by_qualname

from vllm_megamoe.checkpoint.formats import BF16, OWN_PREFIX, ExpertsFormat
from vllm_megamoe.checkpoint.own import OwnLayer
from vllm_megamoe.checkpoint.recognise import experts_format, source_section
from vllm_megamoe.checkpoint.stored.part import Stored
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.lanes import Lane, alike, dropped_rows, lora, metrics, running_lane, warm_up
from vllm_megamoe.lanes.carried import Carried, LiveFacts
from vllm_megamoe.lanes.layer_facts import expert_names, read_layer, shared_names
from vllm_megamoe.lanes.moe_method import MegaMoeMethod
from vllm_megamoe.lanes.quant_config import MegaMoeConfig
from vllm_megamoe.lanes.startup import engines_plan, read_engine
from vllm_megamoe.layer import state
from vllm_megamoe.layer.load_report import Audience
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan


def method_of(layer: torch.nn.Module, prefix: str, config: MegaMoeConfig) -> Any:
    """The method of a layer under construction: ours for experts, for all others the checkpoint's own.

    Raises:
        ConfigError: a MoE layer is not the one that was planned.
    """
    lane, vllm_config = running_lane(), get_current_vllm_config()
    lane.start(vllm_config)
    if vllm_config.lora_config is not None:
        lora.install()
    if isinstance(layer, RoutedExperts):
        return _moe_method(layer, config, lane)
    return lane.layer_method(layer, prefix, config)


def _moe_method(layer: Any, config: MegaMoeConfig, lane: Lane) -> MegaMoeMethod:
    vllm_config = get_current_vllm_config()
    carried = _carried(config, vllm_config, lane)
    alike.compare_ranks(vllm_config, carried.plan)
    if any(planned.capacity.drops for planned in carried.plan.layers):
        dropped_rows.watch(resolve_obj_by_qualname(vllm_config.parallel_config.worker_cls))
    live = LiveLayer(layer, vllm_config, config, carried, lane)
    plan = live.confirmed()
    state.set_finder(_find)
    layers = getattr(vllm_config.model_config.hf_text_config, "num_hidden_layers", None)
    stored = _stored(plan.facts.name, plan.facts.experts_format, config, layers)
    warm_up.begin(vllm_config)
    seat = replace(lane.read_seat(layer, plan.communicator), kind_of_step=warm_up.kind_of_step)
    method: MegaMoeMethod = lane.Method(layer.moe_config, plan, stored, seat, live)
    method.in_files = (live.carried.parts or {}).get(plan.facts.name, {})
    return method


def _stored(name: str, form: ExpertsFormat, config: MegaMoeConfig, num_layers: int | None) -> Stored:
    """How the checkpoint stores a layer's experts; draft layers may be numbered anew behind the decoder's."""
    if config.section is not None and form.name.startswith(OWN_PREFIX):
        return OwnLayer.of_layer(config.section, name, num_layers)
    return stored_of(form.name, source_section(config.section))


def _carried(config: MegaMoeConfig, vllm_config: Any, lane: Lane) -> Carried:
    """The engine's plan; without one (a draft model alone asks for our method) an empty one, which knows nothing."""
    found = config.carried or engines_plan()
    if found is not None:
        return found
    options = Options.parse(vllm_config.additional_config)
    return Carried(make_plan(read_engine(vllm_config, own_rows=lane.OWN_ROWS), [], options))


_REPEATING = ("ZeroExpertRouter", "RoutingSimulatorRouter")
"""Routers of vLLM's that may name an expert twice for a token; those with a table of ids may too. All others choose a
top-k, whose experts are distinct."""


@dataclass(frozen=True, slots=True)
class LiveLayer:
    """A MoE layer under construction, and from then on what stands around its routed experts (see Surroundings)."""

    layer: Any
    vllm_config: Any
    config: MegaMoeConfig
    carried: Carried
    lane: Lane

    def confirmed(self, runner: Any = None) -> LayerPlan:
        """The layer's plan, after a comparison with all that is seen of the layer.

        Raises:
            ConfigError: they differ.
        """
        return self.carried.plan_of(self.shown(runner))

    def shown(self, runner: Any = None) -> LiveFacts:
        """What the layer shows, without or with its runner."""
        model_config, names = self.vllm_config.model_config, shared_names(runner)
        facts = read_layer(
            self.layer,
            self._format(expert_names(self.layer)),
            runner,
            self._format(names) if names else BF16,
            model_config.hf_text_config,
        )
        parallel = self.layer.moe_config.moe_parallel_config
        engine = read_engine(self.vllm_config, parallel.is_sequence_parallel, own_rows=self.lane.OWN_ROWS)
        return LiveFacts(engine, facts, runner is not None, facts.draft or model_config.runner_type == "draft")

    def whole_plan(self) -> LayerPlan:
        return self.confirmed(self._runner())

    def check_whole(self) -> None:
        self.lane.check_whole(self.vllm_config)

    def router_repeats(self) -> bool:
        runner = self._runner()
        router = getattr(runner, "router", None) or getattr(self.layer, "router", None)
        tables = ("hash_indices_table", "_hash_indices_table", "tid2eid")
        hashed = any(getattr(each, name, None) is not None for each in (router, self.layer) for name in tables)
        return hashed or type(router).__name__ in _REPEATING

    def audience(self) -> Audience:
        folder, plan = self.carried.metrics, self.carried.plan
        sink = metrics.Written(folder, metrics.served_name(self.vllm_config), plan) if folder else None
        engine = id(self.vllm_config.compilation_config.static_forward_context)
        return Audience(engine, sink, warm_up.is_over)

    def take_shared(self, plan: LayerPlan, put: Callable[[Experts], None]) -> Callable[[], None]:
        return self.lane.take_shared(self._runner(), plan, put)

    def _runner(self) -> Any:
        return self.vllm_config.compilation_config.static_forward_context[self.layer.layer_name]

    def _format(self, names: list[str]) -> ExpertsFormat:
        expert_dtype = getattr(self.vllm_config.model_config.hf_text_config, "expert_dtype", None) or ""
        return experts_format(self.config.section, names, self.config.side_files, expert_dtype)


def _find(layer_name: str) -> LayerState:
    """The state of a layer in the engine whose forward pass is running.

    Raises:
        CheckpointError: weights were loaded again in part.
    """
    experts = get_forward_context().no_compile_layers[layer_name].routed_experts
    experts.quant_method.check_loaded(experts)
    found: LayerState = experts.mega_moe
    return found
