"""A layer's plan as the operator will see it: the plain values that the products' rules look at."""

from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.padding import Padding
from vllm_megamoe.profiles.call_facts import BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

_COMBINE_QUANT = {"none": 0, "e5m2": 3, "e4m3": 4}
# Codes of the use-case table (ACL's number + 256) and ACL's names.
_NAMES = {258: "INT8", 285: "INT4", 291: "FLOAT8_E5M2", 292: "FLOAT8_E4M3FN", 296: "FLOAT4_E2M1"}
_FORMATS = {2: "ND", 29: "FRACTAL_NZ", 51: "FRACTAL_NZ_C0_32"}


def buffer_facts(
    layer: MoeFacts, use_case: UseCase, padding: Padding, ep_size: int, chunk: int, recv: int, options: Options
) -> BufferFacts:
    """Arguments of the layer's SymmBuffer."""
    mode = USE_CASES[use_case]
    return BufferFacts(
        ep_world_size=ep_size,
        num_experts=layer.num_experts,
        num_max_tokens_per_rank=chunk,
        num_topk=layer.topk,
        hidden=padding.hidden,
        max_recv_token_num=recv,
        dispatch_quant_mode=mode.dispatch_quant_mode,
        dispatch_quant_out_dtype=_NAMES.get(mode.dispatch_quant_out_dtype or 0),
        combine_quant_mode=_COMBINE_QUANT[options.combine_quant],
        topk_weights_type=options.topk_weights_type,
        combine_comm_mode=options.combine_comm_mode,
    )


def call_facts(plan: LayerPlan, dtype: str, masked: bool) -> CallFacts:
    """The largest call of the layer, as the method will make it."""
    width, fused = plan.padding.intermediate_hidden, plan.shared.mode == "fused"
    return CallFacts(
        rows=plan.capacity.chunk,
        x_dtype="FLOAT" if dtype == "float32" else "BF16",
        routed=_weights(plan.use_case, width, plan.experts_per_rank, plan.stacked),
        shared=_weights(plan.use_case, width, plan.shared.pieces, plan.stacked) if fused else None,
        has_mask=masked,
        activation=plan.activation.name,
        activation_clamp=plan.activation.clamp,
        activation_params=dict(plan.activation.params),
    )


def _weights(use_case: UseCase, intermediate_hidden: int, count: int, stacked: bool) -> WeightFacts:
    facts = USE_CASES[use_case]
    # Weights have the dispatched type unless the table names another one; BF16 has neither.
    element = _NAMES.get(facts.weight_type or facts.dispatch_quant_out_dtype or 0, "BF16")
    return WeightFacts(
        element1=element,
        element2=element,
        carrier="INT8" if element == "INT4" else "UINT8" if element == "FLOAT4_E2M1" else element,
        format1=_FORMATS[facts.format1],
        format2=_FORMATS[facts.format2],
        stacked=stacked,
        count=count,
        intermediate_hidden=intermediate_hidden,
        has_scales=facts.has_scales,
        has_bias=facts.has_bias,
    )
