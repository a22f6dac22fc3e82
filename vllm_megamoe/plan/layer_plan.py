"""The plan as a value: what is decided for one layer and for all of them, frozen, which everybody else only reads.

`buffer_facts` and `call_facts` are a layer's plan as the operator will see it: what the products' rules look at.
"""

from dataclasses import dataclass

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.plan.activation import ActivationPlan
from vllm_megamoe.plan.agreement import Agreement, Communicator
from vllm_megamoe.plan.capacity import Capacity
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts, Tokens
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.padding import Padding
from vllm_megamoe.plan.shared import SharedPlan
from vllm_megamoe.profiles.facts import BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.memory import weight_bytes
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """How one layer runs.

    Attributes:
        facts: the layer it was made for.
        use_case: the operator scenario.
        loss: rms error of the conversion that the user consented to, empty for an exact one.
        strict: whether numbers that would be rounded at load, against the plan, are an error: without consent.
        agreed: what the layer has in common with the others of its communicator.
        activation: what the call passes, every parameter explicit.
        shared: where the shared experts run.
        fold_scaling: factor that the method multiplies onto the router weights because the runner's own multiplication
            of the output would also reach the fused shared experts; 1.0 for none.
        stacked: whether weights go as one stack instead of a list with a tensor per expert.
        padding: sizes as the operator gets them.
        capacity: rows of a step and of a call.
        buffer: arguments of the layer's SymmBuffer; layers with equal ones share the storage.
        tokens: whether the rows are replicated over the ranks, and so are split before the call.
        profile, backend: as chosen.
        weight_bytes: operands of this layer on one rank, fused shared experts included.
        window_bytes: memory of the communicator's window (A2/A3: both halves), 0 in profile `none`.
        hccl_buffsize_mb: what HCCL_BUFFSIZE must be at least, None where the operator allocates its own.
    """

    facts: MoeFacts
    use_case: UseCase
    loss: str
    strict: bool
    agreed: Agreement
    activation: ActivationPlan
    shared: SharedPlan
    fold_scaling: float
    stacked: bool
    padding: Padding
    capacity: Capacity
    buffer: BufferFacts
    tokens: Tokens
    profile: Profile
    backend: str
    weight_bytes: int
    window_bytes: int
    hccl_buffsize_mb: int | None

    @property
    def communicator(self) -> Communicator:
        """Which of the engine's communicators carries the layer."""
        return self.agreed.communicator

    @property
    def ep_size(self) -> int:
        """Ranks of the communicator."""
        return self.buffer.ep_world_size

    @property
    def slots(self) -> tuple[int, ...]:
        """The logical expert of each physical slot, in rank order; empty where each stands in its own."""
        return self.facts.slots

    def slots_of(self, rank: int) -> list[int]:
        """The logical experts of a rank's slots; empty without a placement."""
        return list(self.slots[rank * self.experts_per_rank : (rank + 1) * self.experts_per_rank])

    @property
    def experts_per_rank(self) -> int:
        """Routed experts that a rank holds, redundant ones included."""
        return self.buffer.experts_per_rank

    @property
    def padding_bytes(self) -> int:
        """Bytes of this layer's operands on a rank that zero-padding adds."""
        sizes, found = self.padding, 0
        for case, experts in ((self.use_case, self.experts_per_rank), (self.shared.use_case, self.shared.pieces)):
            if case is not None:
                found += weight_bytes(case.value, experts, sizes.hidden, sizes.intermediate_hidden)
                found -= weight_bytes(case.value, experts, sizes.hidden_was, sizes.intermediate_was)
        return found

    @property
    def num_max_tokens_per_rank(self) -> int:
        """Rows that one call may bring."""
        return self.capacity.chunk


@dataclass(frozen=True, slots=True)
class Plan:
    """Every decision about a model, a pure function of its arguments and so equal on all ranks.

    Attributes:
        engine, options, profile: what it was made from.
        layers: one plan per MoE layer, in order.
    """

    engine: EngineFacts
    options: Options
    profile: Profile
    layers: tuple[LayerPlan, ...]

    @property
    def buffers(self) -> tuple[BufferFacts, ...]:
        """The operator configurations, each with storage of its own."""
        return tuple(dict.fromkeys(layer.buffer for layer in self.layers))

    @property
    def window_bytes(self) -> dict[Communicator, int]:
        """Memory of each communicator's window, that of its largest layer (A2/A3: both halves)."""
        found: dict[Communicator, int] = {}
        for layer in self.layers:
            found[layer.communicator] = max(found.get(layer.communicator, 0), layer.window_bytes)
        return found


_COMBINE_QUANT = {"none": 0, "e5m2": 3, "e4m3": 4}


def buffer_facts(
    layer: MoeFacts, use_case: UseCase, padding: Padding, ep_size: int, chunk: int, recv: int, options: Options
) -> BufferFacts:
    """Arguments of the layer's SymmBuffer."""
    facts = USE_CASES[use_case]
    return BufferFacts(
        ep_world_size=ep_size,
        num_experts=layer.physical_experts,
        num_max_tokens_per_rank=chunk,
        num_topk=layer.topk,
        hidden=padding.hidden,
        max_recv_token_num=recv,
        dispatch_quant_mode=facts.dispatch_quant_mode,
        dispatch_quant_out_dtype=None if facts.dispatched is None else facts.dispatched.name,
        combine_quant_mode=_COMBINE_QUANT[options.combine_quant],
        topk_weights_type=options.topk_weights_type,
        combine_comm_mode=options.combine_comm_mode,
    )


_CARRIERS = {AclDtype.INT4: "INT8", AclDtype.FLOAT4_E2M1: "UINT8"}
"""Dtype of the tensors that carry two 4-bit elements in a byte."""


def call_facts(plan: LayerPlan, dtype: str, masked: bool) -> CallFacts:
    """The largest call of the layer, as the method will make it."""
    width, own = plan.padding.intermediate_hidden, plan.shared.use_case
    out = None if own is None else USE_CASES[own].dispatched
    return CallFacts(
        rows=plan.capacity.chunk,
        x_dtype="FLOAT" if dtype == "float32" else "BF16",
        routed=_weights(plan.use_case, width, plan.experts_per_rank, plan.stacked),
        shared=None if own is None else _weights(own, width, plan.shared.pieces, plan.stacked),
        shared_out_dtype=out.name if out is not None and out.name != plan.buffer.dispatch_quant_out_dtype else None,
        has_mask=masked,
        activation=plan.activation.name,
        activation_clamp=plan.activation.clamp,
        activation_params=dict(plan.activation.params),
    )


def _weights(use_case: UseCase, intermediate_hidden: int, count: int, stacked: bool) -> WeightFacts:
    facts = USE_CASES[use_case]
    element = facts.element.name
    return WeightFacts(
        element1=element,
        element2=element,
        carrier=_CARRIERS.get(facts.element, element),
        format1=facts.format1.name,
        format2=facts.format2.name,
        stacked=stacked,
        count=count,
        intermediate_hidden=intermediate_hidden,
        has_scales=facts.has_scales,
        has_bias=facts.has_bias,
    )
