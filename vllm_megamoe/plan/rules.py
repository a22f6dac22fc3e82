"""Every rule that a configuration can break, each as one function that yields what is wrong and what to change.

All of them run before a weight is read, and all violations come in one error.
"""

from collections.abc import Callable, Iterator

from vllm_megamoe.plan.activation import ACTIVATIONS
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile

_MOST = 1024
"""No profile takes more ranks (docs/limits.md)."""

Rule = Callable[[EngineFacts, MoeFacts, Profile, Options], Iterator[Violation]]


def parallel(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """The operator is expert parallel only: each rank holds whole experts, the same number on every rank."""
    del options
    ranks = engine.tensor_parallel * engine.data_parallel
    if ranks > 1 and not engine.expert_parallel:
        yield Violation(
            "parallelism",
            f"tensor parallel {engine.tensor_parallel}, data parallel {engine.data_parallel}, no expert parallelism",
            "whole experts on every rank",
            "Add --enable-expert-parallel.",
        )
    if engine.ep_size > 1 and layer.num_experts % engine.ep_size:
        sizes = limits_of(profile).ep_sizes.value
        legal = [n for n in range(1, min(layer.num_experts, _MOST) + 1) if layer.num_experts % n == 0 and n in sizes]
        yield Violation(
            layer.name,
            f"{layer.num_experts} experts do not divide over {engine.ep_size} ranks",
            "the same number of experts on every rank",
            f"Choose tensor parallel x data parallel from {legal}.",
        )
    if engine.prefill_context_parallel > 1:
        yield Violation(
            "parallelism",
            f"prefill context parallel size {engine.prefill_context_parallel}",
            "1",
            "Drop --prefill-context-parallel-size.",
        )
    if engine.tensor_parallel > 1 and engine.data_parallel > 1 and engine.splits_rows(layer) is False:
        yield Violation(
            layer.name,
            "rows replicated over the tensor-parallel ranks but not over the data-parallel ones",
            "a model that splits its rows over the tensor-parallel ranks (sequence-parallel MoE)",
            "Use tensor parallelism or data parallelism alone with this model.",
        )


def dtype(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """The operator takes bfloat16 rows (op tiling); float32 exists in the twin only, to compare with other code."""
    del layer, options
    if engine.dtype != "bfloat16" and (engine.dtype != "float32" or profile.product != "none"):
        yield Violation("dtype", engine.dtype, "bfloat16", "Add --dtype bfloat16.")


def expert_weights(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """No bias of a model has a place in the operator; the experts' format must be one that can be loaded."""
    del engine, profile, options
    if layer.has_bias:
        yield Violation(
            layer.name,
            "the experts carry biases",
            "experts without bias (the operator has no place for them)",
            "Serve this model without --quantization megamoe.",
        )
    if not layer.experts_format.facts.loads:
        yield Violation(
            layer.name,
            f"experts in the format {str(layer.experts_format)!r}",
            "BF16 experts; this format cannot be loaded yet",
            "Use the BF16 checkpoint, or leave the experts out of its quantisation.",
        )


def activation(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """The operator multiplies a gated activation; GELU, ReLU2 and ungated experts have no name in it."""
    del engine, profile, options
    if layer.activation.name not in ACTIVATIONS:
        yield Violation(
            layer.name,
            f"activation {layer.activation.name!r}",
            f"one of {', '.join(ACTIVATIONS)}",
            "The operator has swiglu, swiglustep, swigluoai and situglu: if this is one of them by another name, add "
            f"a row {layer.activation.name!r} to ACTIVATIONS in vllm_megamoe/plan/activation.py; else serve this model "
            "without --quantization megamoe.",
        )


def layer_semantics(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """What the surrounding model does with the rows must match a layer whose output is complete per token."""
    del engine, profile, options
    if layer.router_weight_on_input:
        yield Violation(
            layer.name,
            "the router weight multiplies the expert's input (apply_router_weight_on_input)",
            "weights applied to the experts' outputs",
            "Serve this model without --quantization megamoe.",
        )
    if layer.skips_reduction:
        yield Violation(
            layer.name,
            "the model reduces the layer's output itself (skip_final_all_reduce)",
            "a layer that may return finished rows; they would be counted once per rank",
            "Turn off the fused all-reduce, or serve without --quantization megamoe.",
        )


def features(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """Features that move, patch or overlap the experts while the operator holds them."""
    del layer, profile, options
    named = [
        (engine.lora, "LoRA", "--enable-lora"),
        (engine.eplb, "expert-parallel load balancing", "--enable-eplb"),
        (engine.dual_batch_overlap, "dual batch overlap", "--enable-dbo"),
    ]
    for on, name, flag in named:
        if on:
            yield Violation("features", f"{name} is on", "experts that stay as loaded", f"Drop {flag}.")


def modes(engine: EngineFacts, layer: MoeFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """Options of the operator that exclude each other on every product."""
    del engine, layer, profile
    if options.combine_comm_mode == 1 and options.combine_quant != "none":
        yield Violation(
            "options",
            f"combine_comm_mode = 1 with combine_quant = {options.combine_quant!r}",
            "one of the two (operator_readme.txt, combineCommMode)",
            "Drop combine_comm_mode or combine_quant.",
        )


RULES: tuple[Rule, ...] = (
    parallel,
    dtype,
    expert_weights,
    activation,
    layer_semantics,
    features,
    modes,
)
"""Rules of every product; those of one product come from its profile."""
