"""What the plan is computed from: plain frozen facts, so that it is a pure function and equal on all ranks."""

from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat

Tokens = Literal["own", "replicated"]
"""Whether each rank of the communicator brings its own rows, or all bring the same ones (tensor parallel)."""


SplitsRows = Literal["always", "one_stage", "never", "unknown"]
"""Whether a MoE block splits its rows over tensor-parallel ranks when data parallelism is on too (sequence-parallel
MoE): with any number of pipeline stages, with one stage alone, never, or it is not known."""


@dataclass(frozen=True, slots=True)
class ActivationFacts:
    """An activation as the model's config says it, in vLLM's terms; the plan turns it into the operator's.

    Attributes:
        name: value of vLLM's MoEActivation (`silu`, `swigluoai`, `swigluoai_uninterleave`, `swiglustep`, `situ`,
            `gelu`, `relu2_no_mul`, ...), or the config's own word where vLLM has none.
        limit: clamp, None for none (0 and inf in a config mean none too).
        alpha, beta: of swigluoai; `beta` also of situ.
        linear_beta: of situ, None for a linear up half.
    """

    name: str = "silu"
    limit: float | None = None
    alpha: float | None = None
    beta: float | None = None
    linear_beta: float | None = None


@dataclass(frozen=True, slots=True)
class SharedFacts:
    """The shared experts of a layer, as one MLP: several of them are one wider MLP in every checkpoint.

    Attributes:
        intermediate_hidden: width of the whole MLP, all shared experts together.
        hidden: width of the rows that it sees.
        activation: of the MLP.
        gated: whether a sigmoid gate per token multiplies its output (Qwen).
        experts_format: its format in the checkpoint.
    """

    intermediate_hidden: int
    hidden: int
    activation: ActivationFacts = ActivationFacts()
    gated: bool = False
    experts_format: ExpertsFormat = BF16


@dataclass(frozen=True, slots=True)
class MoeFacts:
    """One MoE layer.

    Attributes:
        name: the layer's prefix, for messages (`model.layers.3.mlp.experts`).
        index: number of the decoder layer, -1 where it is not known.
        num_experts: routed experts of the whole model (E over all ranks).
        topk: experts per token.
        hidden: width of the rows that the routed experts see (of latent MoE the routed hidden, not the model's).
        intermediate_hidden: width I after the activation.
        activation: of the routed experts.
        gate_up_interleaved: whether rows of gate and up alternate in the checkpoint (gpt-oss).
        has_bias: whether the experts carry biases.
        router_weight_on_input: whether the router weight multiplies the input row instead of the expert's output.
        skips_reduction: whether the model reduces the layer's output itself, outside the layer.
        experts_format: the checkpoint's format of the experts.
        shared: the shared experts, None for none.
        routed_scaling_factor: factor on the routed sum, 1.0 for none.
        scale_on_output: whether the model's code applies that factor to the output instead of the router weights.
        model_hidden: width of the model's own rows; differs from `hidden` in latent MoE.
        draft: whether the layer belongs to a draft or MTP model.
        splits_rows: see SplitsRows.
        slots: the expert in each physical slot, in rank order; empty where each stands in its own. No fact of the model
            but the user's choice (`expert_placement`).
    """

    name: str
    num_experts: int
    topk: int
    hidden: int
    intermediate_hidden: int
    index: int = -1
    activation: ActivationFacts = ActivationFacts()
    gate_up_interleaved: bool = False
    has_bias: bool = False
    router_weight_on_input: bool = False
    skips_reduction: bool = False
    experts_format: ExpertsFormat = BF16
    shared: SharedFacts | None = None
    routed_scaling_factor: float = 1.0
    scale_on_output: bool = False
    model_hidden: int = 0
    draft: bool = False
    splits_rows: SplitsRows = "unknown"
    slots: tuple[int, ...] = ()

    @property
    def physical_experts(self) -> int:
        """Slots over all ranks: what the operator takes for experts, redundant ones included."""
        return len(self.slots) or self.num_experts


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine around the layers: parallel sizes, dtype and the features that touch experts.

    Attributes:
        dtype: activation dtype, as torch names it without prefix (`bfloat16`).
        tensor_parallel, data_parallel, pipeline_parallel, prefill_context_parallel: sizes.
        expert_parallel: whether `--enable-expert-parallel` was given.
        sequence_parallel: whether the layers hand each tensor-parallel rank its own rows; None where the model decides,
            see MoeFacts.splits_rows.
        max_num_batched_tokens: the scheduler's bound of rows per step and data-parallel rank.
        own_rows: whether the platform hands every rank rows of its own, whatever the parallel sizes are (vllm-ascend
            splits them over the tensor-parallel ranks before a MoE layer).
        lora, eplb, dual_batch_overlap: whether that feature is on.
        lora_targets: modules that LoRA is restricted to (`--lora-target-modules`), empty for all that vLLM supports.
        hccl_buffsize_mb: HCCL_BUFFSIZE of the environment, None where it is not known.
    """

    dtype: str
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    prefill_context_parallel: int = 1
    expert_parallel: bool = False
    sequence_parallel: bool | None = None
    max_num_batched_tokens: int = 2048
    own_rows: bool = False
    lora: bool = False
    eplb: bool = False
    dual_batch_overlap: bool = False
    lora_targets: tuple[str, ...] = ()
    hccl_buffsize_mb: int | None = None

    @property
    def ep_size(self) -> int:
        """Ranks of the expert-parallel communicator: DP x PCP x TP, or 1 without expert parallelism (vLLM)."""
        if not self.expert_parallel:
            return 1
        return self.tensor_parallel * self.data_parallel * self.prefill_context_parallel

    def splits_rows(self, layer: MoeFacts) -> bool | None:
        """Whether a layer's rows are split over the tensor-parallel ranks; None where it is not known."""
        if self.sequence_parallel is not None:
            return self.sequence_parallel
        one_stage = self.pipeline_parallel == 1
        found: dict[SplitsRows, bool | None] = {"always": True, "one_stage": one_stage, "never": False, "unknown": None}
        return found[layer.splits_rows]

    @property
    def tokens(self) -> Tokens:
        """Tensor parallelism alone replicates rows; the platform or another parallelism gives each rank its own."""
        alone = self.data_parallel == 1 and not self.sequence_parallel and not self.own_rows
        return "replicated" if alone and self.ep_size > 1 else "own"
