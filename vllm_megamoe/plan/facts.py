"""What the plan is computed from: plain frozen facts, so that it is a pure function and equal on all ranks."""

from dataclasses import dataclass
from typing import Literal

Tokens = Literal["own", "replicated"]
"""Whether each rank of the communicator brings its own rows, or all bring the same ones (tensor parallel)."""


@dataclass(frozen=True, slots=True)
class MoeFacts:
    """One MoE layer, or the pattern that all of them follow when only config.json is known.

    Attributes:
        name: the layer's prefix, for messages.
        num_experts: routed experts of the whole model (E over all ranks).
        topk: experts per token.
        hidden: width of the rows that the routed experts see.
        intermediate_hidden: width I after the activation.
        activation: vLLM's name of it (`silu`, `gelu`, ...).
        swiglu_limit: clamp of the gate and up values, None for none.
        has_bias: whether the experts carry biases.
        router_weight_on_input: whether the router weight multiplies the input row instead of the expert's output.
        skips_reduction: whether the model reduces the layer's output itself, outside the layer.
        experts_format: the checkpoint's format of the experts, `bf16` or the name of another one.
    """

    name: str
    num_experts: int
    topk: int
    hidden: int
    intermediate_hidden: int
    activation: str = "silu"
    swiglu_limit: float | None = None
    has_bias: bool = False
    router_weight_on_input: bool = False
    skips_reduction: bool = False
    experts_format: str = "bf16"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine around the layers: parallel sizes, dtype and the features that touch experts.

    Attributes:
        dtype: activation dtype, as torch names it without prefix (`bfloat16`).
        tensor_parallel, data_parallel, pipeline_parallel, prefill_context_parallel: sizes.
        expert_parallel: whether `--enable-expert-parallel` was given.
        sequence_parallel: whether the model hands each tensor-parallel rank its own rows (None: not known yet).
        max_num_batched_tokens: the scheduler's bound of rows per step and data-parallel rank.
        lora, eplb, dual_batch_overlap: whether that feature is on.
    """

    dtype: str
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    prefill_context_parallel: int = 1
    expert_parallel: bool = False
    sequence_parallel: bool | None = None
    max_num_batched_tokens: int = 2048
    lora: bool = False
    eplb: bool = False
    dual_batch_overlap: bool = False

    @property
    def ep_size(self) -> int:
        """Ranks of the expert-parallel communicator: DP x PCP x TP, or 1 without expert parallelism (vLLM)."""
        if not self.expert_parallel:
            return 1
        return self.tensor_parallel * self.data_parallel * self.prefill_context_parallel

    @property
    def tokens(self) -> Tokens:
        """Tensor parallelism alone replicates the rows; data or sequence parallelism gives every rank its own."""
        alone = self.data_parallel == 1 and not self.sequence_parallel
        return "replicated" if alone and self.ep_size > 1 else "own"
