"""EngineFacts from a command line: what vLLM would be told, with vLLM's defaults (vLLM 0.32)."""

from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.plan.facts import EngineFacts

FEATURES = {"lora": "enable-lora", "eplb": "enable-eplb", "dual_batch_overlap": "enable-dbo"}
"""Field of EngineFacts -> the switch that turns it on."""

_DTYPES = {"half": "float16", "float": "float32"}


_SPECULATION = ("speculative-config", "spec-method", "spec-model", "spec-tokens")


def speculates(line: ServeLine) -> bool:
    """Whether the line serves a draft model or MTP layers too."""
    return any(flag.name in _SPECULATION for flag in line.flags)


def read_engine(line: ServeLine, model_dtype: str, max_num_batched_tokens: int) -> EngineFacts:
    """Facts of the engine that the line would start.

    Args:
        line: the command line.
        model_dtype: what `--dtype auto` means for this model.
        max_num_batched_tokens: where the line does not say; vLLM itself chooses by platform.

    Raises:
        ConfigError: for a size that is no number.
    """
    dtype = line.value("dtype") or "auto"
    return EngineFacts(
        dtype=model_dtype if dtype == "auto" else _DTYPES.get(dtype, dtype),
        tensor_parallel=line.number("tensor-parallel-size", 1),
        data_parallel=line.number("data-parallel-size", 1),
        pipeline_parallel=line.number("pipeline-parallel-size", 1),
        prefill_context_parallel=line.number("prefill-context-parallel-size", 1),
        expert_parallel=bool(line.switch("enable-expert-parallel")),
        max_num_batched_tokens=line.number("max-num-batched-tokens", max_num_batched_tokens),
        lora=bool(line.switch(FEATURES["lora"])),
        eplb=bool(line.switch(FEATURES["eplb"])),
        dual_batch_overlap=bool(line.switch(FEATURES["dual_batch_overlap"])),
    )
