"""Published configs made small: sizes change, everything that says what a layer computes stays."""

import json
from pathlib import Path
from typing import Any

EXPERTS, TOPK, HIDDEN, WIDTH = 6, 3, 96, 64

SMALL: dict[str, dict[str, Any]] = {
    "deepseek-ai--DeepSeek-V4-Flash_config.json": {
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": TOPK,
        "num_hidden_layers": 5,
    },
    "MiniMaxAI--MiniMax-M3_config.json": {
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "moe_intermediate_size": WIDTH,
        "shared_intermediate_size": WIDTH,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOPK,
        "num_hidden_layers": 5,
        "moe_layer_freq": [0, 0, 0, 1, 1],
    },
    "moonshotai--Kimi-K3_config.json": {
        "hidden_size": 2 * HIDDEN,
        "routed_expert_hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
        "num_experts_per_token": TOPK,
        "num_hidden_layers": 3,
    },
}

STEP_3_5: dict[str, Any] = {
    # Keys and their meaning as in the model's configuration class; limits and sizes of layers as published.
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "hidden_size": HIDDEN,
    "moe_intermediate_size": WIDTH,
    "share_expert_dim": WIDTH,
    "moe_num_experts": EXPERTS,
    "moe_top_k": TOPK,
    "num_hidden_layers": 45,
    "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)),
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "use_moe_router_bias": True,
    "norm_expert_weight": True,
    "swiglu_limits": [0.0] * 43 + [7.0, 7.0],
    "swiglu_limits_shared": [0.0] * 44 + [16.0],
}


def small_config(folder: Path, file: str) -> dict[str, Any]:
    """A published config.json of the shared folder, made small."""
    config: dict[str, Any] = json.loads((folder / "model_configs" / file).read_text())
    section = config.get("text_config", config)
    section.pop("quantization_config", None)
    absent = [key for key in SMALL[file] if key not in section]
    if absent:
        raise KeyError(f"{file} has no {absent}")
    section.update(SMALL[file])
    return config
