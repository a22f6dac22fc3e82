"""The quantisation method that vLLM calls for each MoE layer: weights in, rows out."""

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from vllm.compilation import monitor
from vllm.config import CUDAGraphMode, get_current_vllm_config
from vllm.model_executor.layers.fused_moe.config import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    FusedMoEConfig,
    FusedMoEQuantConfig,
)
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from vllm_megamoe.checkpoint.own import OwnLayer
from vllm_megamoe.checkpoint.stored.matrix import DenseMatrix, Matrix, check_kept
from vllm_megamoe.checkpoint.stored.part import Stored
from vllm_megamoe.checkpoint.stream import ExpertStream, OwnStream
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.lanes.expert_loading import expert_name, own_experts, register_parts
from vllm_megamoe.lanes.moe_kernel import make_kernel
from vllm_megamoe.layer import state
from vllm_megamoe.layer.buffers import open_handle
from vllm_megamoe.layer.load_report import REPORT, Audience
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.layer.weights import RoutedWeights, SharedWeights
from vllm_megamoe.plan.layer_plan import LayerPlan

logger = logging.getLogger(__name__)

_WHOLE_FILES = frozenset({"auto", "hf", "safetensors", "pt", "npcache", "mistral", "dummy"})
"""Load formats whose tensors are memory of their own or pages of a file, and stay as they are while a model loads."""


def captures_graphs(vllm_config: Any) -> bool:
    """Whether the engine captures graphs at all."""
    mode = vllm_config.compilation_config.cudagraph_mode
    return not vllm_config.model_config.enforce_eager and mode not in (None, CUDAGraphMode.NONE)


def captures_are_over(state: LayerState) -> bool:
    """Whether no graph of an engine that captures some is in its capture now, nor about to be.

    vLLM's runner says when captures are forbidden (compilation/monitor.py). Its second runner does not: there one with
    the layer in it must have been captured. A capture begins before its first MoE layer runs.
    """
    return not monitor.cudagraph_capturing_enabled or state.captured_at > -math.inf


class Surroundings(Protocol):
    """What stands around a layer's routed experts in the running engine; a lane knows it."""

    def whole_plan(self) -> LayerPlan:
        """The layer's plan, compared with the layer now that its shared experts and factors are there too.

        Raises:
            ConfigError: they differ.
        """

    def check_whole(self) -> None:
        """Raise CheckpointError where layers without experts were loaded again in part."""

    def router_repeats(self) -> bool:
        """Whether the layer's router may name an expert twice for a token."""

    def audience(self) -> Audience:
        """Who is told of the layer's expert load."""

    def take_shared(self, plan: LayerPlan, put: Callable[[Experts], None]) -> Callable[[], None]:
        """Give `plan.shared.pieces` shared experts to `put`, now and when loaded again; vLLM's own path is off then.

        Returns:
            What raises CheckpointError where they were loaded again in part.
        """


class MegaMoeMethod(FusedMoEMethodBase):  # type: ignore[misc]
    """Weights in, rows out: everything else is decided by the plan and done by the operator.

    `in_files` says which parts of an expert the files have, by projection; empty where nobody has looked.

    After loading, the layer carries `mega_moe` (a LayerState) and `mega_moe_buffer` (the operator's SymmBuffer).

    Args:
        moe: vLLM's configuration of the layer.
        plan: the layer's, confirmed for the routed experts alone: vLLM asks for a method before the layer's shared
            experts are at hand.
        stored: how the checkpoint stores the routed experts.
        seat: the layer's communicator.
        surroundings: where the rest of the layer comes from, once it is there.
    """

    def __init__(
        self, moe: FusedMoEConfig, plan: LayerPlan, stored: Stored, seat: Seat, surroundings: Surroundings
    ) -> None:
        super().__init__(moe)
        self.plan = plan
        self.seat = seat
        self.surroundings = surroundings
        self.stored = stored
        self.in_files: Mapping[str, frozenset[str]] = {}
        self._is_whole = False
        self._weights: RoutedWeights | None = None
        self._check_shared: Callable[[], None] | None = None
        self.moe_quant_config = FUSED_MOE_UNQUANTIZED_CONFIG
        self.moe_kernel = make_kernel(moe, FUSED_MOE_UNQUANTIZED_CONFIG)

    def get_fused_moe_quant_config(self, layer: Any) -> FusedMoEQuantConfig:
        return FUSED_MOE_UNQUANTIZED_CONFIG

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size_per_partition: int, act_dtype: Any, moe_parallel_config: Any
    ) -> tuple[int, int]:
        """Sizes stay as the checkpoint has them; padding, where it is exact, is the plan's business."""
        return hidden_size, intermediate_size_per_partition

    def complete_plan(self) -> LayerPlan:
        """The plan, confirmed for the whole layer from the time on when the model is built; looked at once."""
        if not self._is_whole:
            self.plan = self.surroundings.whole_plan()
            self._is_whole = True
        return self.plan

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register a parameter without numbers for each part of the format; experts are converted as they arrive."""
        self._kept_in = params_dtype, torch.empty(0).device
        vllm_config = get_current_vllm_config()
        load_format, self._captures = vllm_config.load_config.load_format, captures_graphs(vllm_config)
        self._dummy = load_format == "dummy"
        sizes, called = (hidden_size, intermediate_size_per_partition), expert_name(layer)
        ids = self.plan.slots_of(self.seat.rank) or own_experts(layer)
        if self.plan.slots and getattr(get_current_vllm_config().load_config, "enable_ep_weight_filter", False):
            raise ConfigError(
                f"{layer.layer_name}: enable_ep_weight_filter skips the experts that stand elsewhere without an "
                "expert_placement; expected it off. Drop --enable-ep-weight-filter or expert_placement."
            )
        name, stored = layer.layer_name, self.stored
        if isinstance(stored, OwnLayer):
            layer.mega_moe_experts = OwnStream(
                name, stored, *sizes, ids, called, finish=lambda slot, held: self._routed().put_own(slot, stored, held)
            )
        else:
            layer.mega_moe_experts = ExpertStream(
                name, stored, *sizes, ids, called, lambda slot, one: self._routed().put(slot, one), self._check_kept
            )
            layer.mega_moe_experts.expect(self.in_files)
        layer.mega_moe_experts.copies = load_format not in _WHOLE_FILES
        register_parts(layer, self.stored)

    def _check_kept(self, matrix: Matrix, where: str) -> None:
        """See that the plan's promise holds for these numbers; unquantised ones are cast to the dtype asked for."""
        if self.plan.strict and not isinstance(matrix, DenseMatrix):
            check_kept(matrix, self.plan.use_case, self._kept_in[0], where)

    def _routed(self) -> RoutedWeights:
        """Made with the first expert: only then is the layer's plan confirmed as a whole."""
        if self._weights is None:
            self._weights = RoutedWeights(self.complete_plan(), *self._kept_in)
        return self._weights

    def process_weights_after_loading(self, layer: Any) -> None:
        """See that all experts have come and make the buffer. Runs on all ranks, layer by layer.

        When weights are loaded again it has nothing more to do: they went into the operands that are there.

        Raises:
            CheckpointError: an expert lacks tensors.
        """
        stream: ExpertStream = layer.mega_moe_experts
        if self._dummy and not stream.started:
            self._routed().fill_dummy()
            stream.skip_first()
        stream.settle()
        if hasattr(layer, "mega_moe"):
            return
        # Whoever loads again gives tensors from buffers of his own.
        stream.copies = True
        plan, name = self.complete_plan(), layer.layer_name
        operands = self._routed().operands()
        shared = None
        if plan.shared.mode == "fused":
            weights = SharedWeights(plan, *self._kept_in)
            self._check_shared = self.surroundings.take_shared(plan, weights.put)
            shared = weights.operands()
        handle = open_handle(name, plan, self.seat)
        layer.mega_moe = LayerState(
            name, plan, self.seat, operands, handle, shared, repeats=self.surroundings.router_repeats()
        )
        layer.mega_moe_buffer = handle.buffer
        watched = layer.mega_moe, self.surroundings.audience()
        may_ask = [partial(captures_are_over, layer.mega_moe)] if self._captures else []
        layer.mega_moe_report = REPORT.watch(*watched, *may_ask)
        logger.info(
            "megamoe layer ready: layer=%s use_case=%s rank=%d/%d experts=%d shared=%d bytes=%d "
            "num_max_tokens_per_rank=%d",
            name,
            plan.use_case.value,
            self.seat.rank,
            self.seat.size,
            plan.experts_per_rank,
            plan.shared.pieces if shared else 0,
            operands.nbytes + (shared.nbytes if shared else 0),
            plan.num_max_tokens_per_rank,
        )

    def check_loaded(self, layer: Any) -> None:
        """Called before each step.

        Raises:
            CheckpointError: weights were loaded again in part.
        """
        layer.mega_moe_experts.settle()
        if self._check_shared is not None:
            self._check_shared()
        self.surroundings.check_whole()

    def apply(
        self,
        layer: Any,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any,
        shared_experts_input: Tensor | None,
    ) -> Tensor:
        """The whole layer; shared experts that are not fused stay with vLLM's runner, which adds them."""
        if torch.compiler.is_compiling():
            hidden: Tensor = state.moe_layer(x, topk_ids, topk_weights, layer.layer_name)
            return hidden
        self.check_loaded(layer)
        y: Tensor = layer.mega_moe.run(x, topk_ids, topk_weights)
        return y
