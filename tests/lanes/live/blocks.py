"""Models of which vLLM builds no whole on a CPU: their MoE block alone, inside the engine config of another model."""

from collections.abc import Callable
from typing import Any

from transformers import PretrainedConfig


def kimi_block(vllm_config: Any, config: dict[str, Any], layer: int) -> None:
    from vllm.models.kimi_k3.nvidia.model import KimiMoE
    from vllm.transformers_utils.configs.kimi_linear import KimiLinearConfig

    name = f"model.layers.{layer}.block_sparse_moe"
    KimiMoE(KimiLinearConfig(**config), vllm_config, prefix=name, layer_idx=layer)


def minimax_m3_block(vllm_config: Any, config: dict[str, Any], layer: int) -> None:
    from vllm.models.minimax_m3.nvidia.model import MiniMaxM3MoE
    from vllm.transformers_utils.configs.minimax_m3 import MiniMaxM3TextConfig

    MiniMaxM3MoE(MiniMaxM3TextConfig(**config), layer, prefix=f"model.layers.{layer}.block_sparse_moe")


def hy_v4_block(vllm_config: Any, config: dict[str, Any], layer: int) -> None:
    from vllm.models.hy_v4.nvidia.moe import HYV4MoEFused

    HYV4MoEFused(PretrainedConfig(**config), prefix=f"model.layers.{layer}.mlp")


def ling_25_block(vllm_config: Any, config: dict[str, Any], layer: int) -> None:
    from vllm.model_executor.models.bailing_moe_linear import BailingMoeV25

    BailingMoeV25(PretrainedConfig(**config), layer_id=layer, prefix=f"model.layers.{layer}.mlp")


def ling_3_block(vllm_config: Any, config: dict[str, Any], layer: int) -> None:
    from vllm.model_executor.models.bailing_moe_v3 import BailingMoeV3MoE

    BailingMoeV3MoE(PretrainedConfig(**config), layer_id=layer, prefix=f"model.layers.{layer}.mlp")


BLOCKS: dict[str, Callable[[Any, dict[str, Any], int], None]] = {
    "KimiLinearForCausalLM": kimi_block,
    "MiniMaxM3SparseForCausalLM": minimax_m3_block,
    "HYV4ForCausalLM": hy_v4_block,
    "BailingMoeV2_5ForCausalLM": ling_25_block,
    "BailingMoeV3ForCausalLM": ling_3_block,
}
"""By architecture: builds the block of one layer."""
