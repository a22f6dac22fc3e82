"""The rules that a configuration can break beside the product's own: a function each, what is wrong, what to change.

Rules of the engine are looked at once for all layers, rules of a layer for each. All of them run before a weight is
read, and all violations come in one error.
"""

from collections.abc import Callable, Iterator

from vllm_megamoe.checkpoint.formats import Unknown
from vllm_megamoe.checkpoint.recognise import known_methods
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.profiles.profile import Profile

EngineRule = Callable[[EngineFacts, Profile, Options], Iterator[Violation]]
LayerRule = Callable[[EngineFacts, MoeFacts], Iterator[Violation]]


def parallel(engine: EngineFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """The operator is expert parallel only: each rank holds whole experts and brings rows of its own."""
    del profile, options
    ranks = engine.tensor_parallel * engine.data_parallel
    if ranks > 1 and not engine.expert_parallel:
        yield Violation(
            "parallelism",
            f"tensor parallel {engine.tensor_parallel}, data parallel {engine.data_parallel}, no expert parallelism",
            "whole experts on every rank",
            "Add --enable-expert-parallel.",
        )
    if engine.prefill_context_parallel > 1:
        yield Violation(
            "parallelism",
            f"prefill context parallel size {engine.prefill_context_parallel}",
            "1",
            "Drop --prefill-context-parallel-size.",
        )


def dtype(engine: EngineFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """The operator takes bfloat16 rows (op tiling); float32 exists in the twin only, to compare with other code."""
    del options
    if engine.dtype != "bfloat16" and (engine.dtype != "float32" or profile.product != "none"):
        yield Violation("dtype", engine.dtype, "bfloat16", "Add --dtype bfloat16.")


def features(engine: EngineFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """Features that move, patch or overlap the experts while the operator holds them."""
    del profile, options
    named = [
        (engine.eplb, "expert-parallel load balancing", "--enable-eplb"),
        (engine.dual_batch_overlap, "dual batch overlap", "--enable-dbo"),
    ]
    for on, name, flag in named:
        if on:
            yield Violation("features", f"{name} is on", "experts that stay as loaded", f"Drop {flag}.")


def lora(engine: EngineFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """Adapters may patch every layer but the experts: those are operands of the operator (vllm-ascend #12451)."""
    del profile, options
    named = [name for name in engine.lora_targets if is_expert_module(name)]
    if engine.lora and named:
        yield Violation(
            "features",
            f"LoRA on experts ({', '.join(named)})",
            "adapters of other layers: the operator holds the experts as they were loaded",
            f"Drop {', '.join(named)} from --lora-target-modules.",
        )


def is_expert_module(name: str) -> bool:
    """Whether a module of a model is its routed experts, or belongs to one: `experts`, `...mlp.experts.3.up_proj`."""
    return "experts" in name.split(".")


def modes(engine: EngineFacts, profile: Profile, options: Options) -> Iterator[Violation]:
    """Options of the operator that exclude each other on every product."""
    del engine, profile
    if options.combine_comm_mode == 1 and options.combine_quant != "none":
        yield Violation(
            "options",
            f"combine_comm_mode = 1 with combine_quant = {options.combine_quant!r}",
            "one of the two (operator_readme.txt, combineCommMode)",
            "Drop combine_comm_mode or combine_quant.",
        )


def expert_weights(engine: EngineFacts, layer: MoeFacts) -> Iterator[Violation]:
    """No bias of a model has a place in the operator; the experts' format must be one that can be loaded."""
    del engine
    if layer.has_bias:
        yield Violation(
            layer.name,
            "the experts carry biases",
            "experts without bias (the operator has no place for them)",
            "Serve this model without --quantization megamoe.",
        )
    form = layer.experts_format
    if not form.facts.loads:
        known = f" (known: {', '.join(known_methods())})" if isinstance(form, Unknown) else ""
        yield Violation(
            layer.name,
            f"experts in the format {str(form)!r}",
            f"a format that can be read; {form.facts.unread}{known}",
            "Use another checkpoint of this model, or leave the experts out of its quantisation.",
        )


def routes(engine: EngineFacts, layer: MoeFacts) -> Iterator[Violation]:
    """Every token goes to distinct experts (operator_readme.txt, topkIds)."""
    del engine
    if not 1 <= layer.topk <= layer.num_experts:
        yield Violation(
            layer.name,
            f"topk = {layer.topk} of {layer.num_experts} experts",
            f"a number in [1, {layer.num_experts}]",
            "Correct the model's config, or serve it without --quantization megamoe.",
        )


def layer_semantics(engine: EngineFacts, layer: MoeFacts) -> Iterator[Violation]:
    """What the surrounding model does with the rows must match a layer whose output is complete per token."""
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
    mixed = engine.tensor_parallel > 1 and engine.data_parallel > 1 and not engine.own_rows
    if mixed and engine.splits_rows(layer) is False:
        yield Violation(
            layer.name,
            "rows replicated over the tensor-parallel ranks but not over the data-parallel ones",
            "a model that splits its rows over the tensor-parallel ranks (sequence-parallel MoE)",
            "Use tensor parallelism or data parallelism alone with this model. vllm-ascend gives every rank rows of "
            "its own: a plan for NPUs says so with --backend cann.",
        )


ENGINE_RULES: tuple[EngineRule, ...] = (parallel, dtype, features, lora, modes)
LAYER_RULES: tuple[LayerRule, ...] = (expert_weights, routes, layer_semantics)


def of_engine(engine: EngineFacts, profile: Profile, options: Options) -> list[Violation]:
    """What the engine breaks, whatever its layers are."""
    return [violation for rule in ENGINE_RULES for violation in rule(engine, profile, options)]


def of_layer(engine: EngineFacts, layer: MoeFacts) -> list[Violation]:
    """What a layer breaks in this engine, whatever the product is."""
    return [violation for rule in LAYER_RULES for violation in rule(engine, layer)]
