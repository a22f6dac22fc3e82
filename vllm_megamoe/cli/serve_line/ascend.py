"""Whether a command line was written for vllm-ascend, and its settings that are kept with a word on what they do here.

Source: vllm-ascend 0.30.0rc2 (ascend_config.py, envs.py and its tutorials).
"""

import re

from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.plan.options import KEY

_VARIABLE = re.compile(r"(HCCL|VLLM_ASCEND|ASCEND|ACL|PYTORCH_NPU|NPU|LCCL)_\w+|TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF")

KEYS = (
    "enable_fused_mc2",
    "mega_moe_max_tokens",
    "mc2_comm_alg",
    "enable_mc2_hierarchy_comm",
    "enable_prefill_mc2",
    "multistream_overlap_shared_expert",
    "multistream_dsv4_dsa_overlap",
    "enable_flashcomm1",
    "enable_shared_expert_dp",
    "enable_dsa_cp",
    "enable_mlapo",
    "enable_kv_nz",
    "enable_cpu_binding",
    "enable_npugraph_ex",
    "enable_balance_scheduling",
    "recompute_scheduler_enable",
    "weight_nz_mode",
    "fuse_muls_add",
    "eplb_config",
    "dynamic_eplb",
    "expert_map_path",
    "scheduler_config",
    "finegrained_tp_config",
    "ascend_compilation_config",
    "ascend_fusion_config",
    "ascend_scheduler_config",
    "torchair_graph_config",
    "xlite_graph_config",
    "weight_prefetch_config",
    "layer_sharding",
    "mix_placement",
    "combine_quant_mode",
    "enable_force_eplb",
)
"""Keys of `--additional-config` that only vllm-ascend has."""


def ascend_signs(line: ServeLine) -> tuple[str, ...]:
    """What says that the line is for vllm-ascend, as it is written; empty where nothing does."""
    found = [f"{name}={value}" for name, value in line.environment if _VARIABLE.fullmatch(name)]
    if line.value("quantization") == "ascend":
        found.append("--quantization ascend")
    found += [f"--additional-config {key}" for key in line.additional_config() if key in KEYS and key != KEY]
    return tuple(found)
