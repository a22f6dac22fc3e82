"""Whether the model would fit into the product's devices, as `vllm-megamoe plan` says it: a warning at start-up.

The process that starts a server must not touch an NPU, and a twin's host has whatever memory it has: so this is no
refusal here. On a device vLLM itself measures what is left for its cache and stops where it is too little.
"""

from typing import Any

from vllm_megamoe.environment import hccl_buffsize
from vllm_megamoe.plan.fit import Serving, checkpoint_of, fit, overfull
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.model import ModelFacts
from vllm_megamoe.plan.splits import hccl_of, smallest
from vllm_megamoe.plan.whole.cache import cache_bits_of
from vllm_megamoe.profiles.devices import device_of
from vllm_megamoe.profiles.limits import legal_ep_sizes, limits_of


def memory_warning(vllm_config: Any, facts: ModelFacts, plan: Plan) -> str:
    """What `plan` would call a violation, a sentence; empty where the model fits, or no product is planned for.

    Args:
        vllm_config: in the config stage.
        facts: of the model as vLLM would load it.
        plan: of the engine.
    """
    device = device_of(plan.profile.product)
    if device is None or not plan.layers:
        return ""
    config, side_files = vllm_config.model_config.hf_config.to_dict(), vllm_config.quant_config.side_files
    checkpoint = checkpoint_of(config, side_files, facts.layers, plan.engine.dtype)
    serving = Serving(
        device,
        vllm_config.cache_config.gpu_memory_utilization,
        vllm_config.model_config.max_model_len,
        True,
        vllm_config.scheduler_config.max_num_seqs,
        cache_bits_of(config, side_files, str(vllm_config.cache_config.cache_dtype)),
        getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1),
    )
    needed = hccl_of(plan)
    found = fit(checkpoint, plan, serving, None if needed is None else max(needed, hccl_buffsize()))
    if found.holds:
        return ""
    legal = legal_ep_sizes(limits_of(plan.profile), (layer.num_experts for layer in facts.layers))
    better = smallest(checkpoint, plan.engine, plan.options, serving, legal)
    violation = overfull(found, None if better is None else better.engine)
    return "" if violation is None else str(violation)
