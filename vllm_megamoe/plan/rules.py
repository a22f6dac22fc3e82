"""Every rule that a configuration can break, each as one function that yields what is wrong and what to change.

All of them run before a weight is read, and all violations come in one error.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options

SUPPORTED_ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, what came, what was wanted, what to do."""

    where: str
    got: str
    wanted: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.got}; wanted {self.wanted}. {self.remedy}"


Rule = Callable[[EngineFacts, MoeFacts, Options], Iterator[Violation]]


def parallel(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """The operator is expert parallel only: each rank holds whole experts, the same number on every rank."""
    ranks = engine.tensor_parallel * engine.data_parallel
    if ranks > 1 and not engine.expert_parallel:
        yield Violation(
            "parallelism",
            f"tensor parallel {engine.tensor_parallel}, data parallel {engine.data_parallel}, no expert parallelism",
            "whole experts on every rank",
            "Add --enable-expert-parallel.",
        )
    if engine.ep_size > 1 and layer.num_experts % engine.ep_size:
        legal = [n for n in range(1, layer.num_experts + 1) if layer.num_experts % n == 0]
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
    if engine.tensor_parallel > 1 and engine.data_parallel > 1 and engine.sequence_parallel is False:
        yield Violation(
            layer.name,
            "rows replicated over the tensor-parallel ranks but not over the data-parallel ones",
            "a model that splits its rows over the tensor-parallel ranks (sequence-parallel MoE)",
            "Use tensor parallelism or data parallelism alone with this model.",
        )


def dtype(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """The operator takes bfloat16 rows (op tiling); float32 exists in the twin only, to compare with other code."""
    del layer
    if engine.dtype == "bfloat16":
        return
    twin_only = engine.dtype == "float32" and options.chosen_profile == "none"
    if not twin_only:
        yield Violation("dtype", engine.dtype, "bfloat16", "Add --dtype bfloat16.")
    elif options.use_case not in ("auto", "a16w16"):
        yield Violation(
            "dtype",
            f"float32 with use_case {options.use_case}",
            "bfloat16 (float32 is the twin's a16w16 without roundings)",
            "Add --dtype bfloat16, or drop use_case.",
        )


def expert_weights(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """No bias of a model has a place in the operator; the experts' format must map to the use case."""
    del engine
    if layer.has_bias:
        yield Violation(
            layer.name,
            "the experts carry biases",
            "experts without bias (the operator has no place for them)",
            "Serve this model without --quantization megamoe.",
        )
    if layer.experts_format != "bf16":
        yield Violation(
            layer.name,
            f"experts in the format {layer.experts_format!r}",
            "BF16 experts; this format cannot be loaded yet",
            "Use the BF16 checkpoint, or leave the experts out of its quantisation.",
        )
    if options.use_case == "a8w8-int" and options.requant != "allow":
        yield Violation(
            "use_case",
            "a8w8-int from BF16 experts is lossy (about 1.4 % of the weights' rms)",
            "consent to it",
            'Add "requant": "allow" to the megamoe options, or drop use_case.',
        )
    if options.use_case not in ("auto", "a16w16", "a8w8-int"):
        yield Violation(
            "use_case",
            f"{options.use_case} from BF16 experts",
            "a16w16 or a8w8-int; no other conversion is built yet",
            "Drop use_case or choose one of these.",
        )


def activation(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """The operator multiplies a gated activation; GELU, ReLU2 and ungated experts have no name in it."""
    del engine, options
    if layer.activation.name not in SUPPORTED_ACTIVATIONS:
        yield Violation(
            layer.name,
            f"activation {layer.activation.name!r}",
            f"one of {', '.join(SUPPORTED_ACTIVATIONS)}",
            "Serve this model without --quantization megamoe.",
        )


def layer_semantics(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """What the surrounding model does with the rows must match a layer whose output is complete per token."""
    del engine, options
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


def features(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """Features that move, patch or overlap the experts while the operator holds them."""
    del layer, options
    named = [
        (engine.lora, "LoRA", "--enable-lora"),
        (engine.eplb, "expert-parallel load balancing", "--enable-eplb"),
        (engine.dual_batch_overlap, "dual batch overlap", "--enable-dbo"),
    ]
    for on, name, flag in named:
        if on:
            yield Violation("features", f"{name} is on", "experts that stay as loaded", f"Drop {flag}.")


def not_built_yet(engine: EngineFacts, layer: MoeFacts, options: Options) -> Iterator[Violation]:
    """Options whose names are fixed but whose work is not done are refused, never ignored."""
    del engine, layer
    done = {"use_case", "requant", "profile", "backend"}
    for name, field in Options.model_fields.items():
        value = getattr(options, name)
        if name not in done and value != field.default:
            yield Violation(
                "options", f"{name} = {value!r}", f"{field.default!r}", f"Drop {name}: it has no effect yet."
            )
    if options.chosen_profile != "none":
        yield Violation(
            "options",
            f"profile = {options.chosen_profile!r}",
            "'none'",
            "Product limits are not built yet: drop profile, or unset VLLM_MEGAMOE_PROFILE.",
        )


RULES: tuple[Rule, ...] = (
    parallel,
    dtype,
    expert_weights,
    activation,
    layer_semantics,
    features,
    not_built_yet,
)


def violations(engine: EngineFacts, layers: Iterable[MoeFacts], options: Options) -> list[Violation]:
    """Run every rule on every layer; the same sentence is said once."""
    found = [v for layer in layers for rule in RULES for v in rule(engine, layer, options)]
    return list(dict.fromkeys(found))


def check(engine: EngineFacts, layers: Iterable[MoeFacts], options: Options, wrong_options: Iterable[str] = ()) -> None:
    """Raise one ConfigError that holds every violation, wrong options included."""
    found = [*wrong_options, *map(str, violations(engine, layers, options))]
    if found:
        lines = [f"--quantization megamoe cannot serve this, {len(found)} rule(s) violated:"]
        lines += [f"  {i}. {sentence}" for i, sentence in enumerate(found, 1)]
        raise ConfigError("\n".join(lines))
