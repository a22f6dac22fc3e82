"""What a sequence keeps on a rank, and how many bits of each number."""

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise import SideFiles
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.whole.model import WholeModel


def cache_bytes(whole: WholeModel, engine: EngineFacts, tokens: int, bits: int, context_parallel: int = 1) -> int:
    """Bytes that a sequence of so many tokens keeps on a rank, of the pipeline the share of one of equal stages.

    Args:
        bits: of a cached number.
        context_parallel: ranks over which the tokens of a sequence are spread (decode context parallelism).
    """
    tensor_parallel = max(1, engine.tensor_parallel // context_parallel)
    kept = sum(cache.bytes_on_a_rank(tokens, tensor_parallel, bits) for cache in whole.caches)
    stages = engine.pipeline_parallel
    layers = len(whole.blocks)
    largest = -(-layers // stages) / layers if layers else 1.0
    return round(kept * largest / context_parallel)


def cache_bits_of(config: Mapping[str, Any], side_files: SideFiles, asked: str = "auto") -> int:
    """Bits of a cached number: as `--kv-cache-dtype` says, else as the checkpoint does, else those of bfloat16.

    Checkpoints say it in compressed-tensors' `kv_cache_scheme`, ModelOpt's `kv_cache_quant_algo` and msModelSlim's
    `kv_cache_type` (C8).
    """
    if asked.startswith(("fp8", "int8", "uint8")):
        return 8
    if asked.startswith("nvfp4"):
        return 5
    if asked in ("float32", "float"):
        return 32
    if asked != "auto":
        return 16
    for part in _descriptions(config, side_files):
        scheme = part.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and isinstance(scheme.get("num_bits"), int):
            return int(scheme["num_bits"])
        if str(part.get("kv_cache_quant_algo") or part.get("kv_cache_type") or "").upper() in ("FP8", "INT8", "C8"):
            return 8
    return 16


def _descriptions(config: Mapping[str, Any], side_files: SideFiles) -> Iterator[Mapping[str, Any]]:
    for part in (config, config.get("text_config"), *side_files.values()):
        if isinstance(part, Mapping):
            yield part
            for key in ("quantization_config", "quantization"):
                if isinstance(part.get(key), Mapping):
                    yield part[key]
