"""What people deploy on Ascend, as rows: the table behind configs/.

Source of sizes, memory use and speculation: the tutorials of vllm-ascend 0.30.0rc2 (docs/source/tutorials/models,
2026-10-13), each of which serves the checkpoint named here; rows that no tutorial has are in OURS. Where people split,
a row of the prefill side and one of the decode side stand beside the one of both.
"""

from dataclasses import dataclass
from typing import Literal

Product = Literal["a2", "a3", "950"]
Role = Literal["", "prefill", "decode"]

DEVICES = {"a2": "8 cards of 64 GB a node", "a3": "16 dies of 64 GB a node", "950": "8 devices of 96 GB a node"}

TYPES = {
    "bf16": "bf16",
    "w8a8": "msmodelslim-w8a8",
    "w4a8": "msmodelslim-w4a8",
    "mxfp8": "msmodelslim-mxfp8",
    "mxfp4": "msmodelslim-w4a4",
    "w4a8-mxfp": "msmodelslim-w4a8-mxfp",
    "published": "",
}
"""Form of a row's experts -> as `plan --as` names it; `published`: as the model's own config says."""


@dataclass(frozen=True)
class Model:
    """A model that is deployed.

    Attributes:
        name: of the model, and of the files in lower case.
        config: of its published config.json among the collected ones.
        speculation: `mtp` or empty, as its deployments have it.
    """

    name: str
    config: str
    speculation: str = ""


@dataclass(frozen=True)
class Deployment:
    """One file.

    Attributes:
        model: of MODELS.
        product: of the devices.
        form: of the routed experts, a key of TYPES.
        checkpoint: folder, as the tool that made it names it.
        tp, dp: tensor and data parallel size of one engine.
        length: --max-model-len.
        tokens: --max-num-batched-tokens.
        seqs: --max-num-seqs.
        memory: --gpu-memory-utilization.
        role: one side of a deployment that splits prefill and decode; empty for both in one engine.
    """

    model: str
    product: Product
    form: str
    checkpoint: str
    tp: int
    dp: int
    length: int
    tokens: int
    seqs: int
    memory: float = 0.9
    role: Role = ""


MODELS = {
    model.name: model
    for model in (
        Model("Qwen3-30B-A3B", "Qwen--Qwen3-30B-A3B"),
        Model("Qwen3-235B-A22B", "Qwen--Qwen3-235B-A22B"),
        Model("Qwen3.5-397B-A17B", "Qwen--Qwen3.5-397B-A17B", "mtp"),
        Model("Qwen3.6-35B-A3B", "nvidia--Qwen3.6-35B-A3B-NVFP4"),
        Model("DeepSeek-V3.1", "nvidia--DeepSeek-V3.1-NVFP4", "mtp"),
        Model("DeepSeek-V3.2", "nvidia--DeepSeek-V3.2-NVFP4", "mtp"),
        Model("DeepSeek-V4-Flash", "deepseek-ai--DeepSeek-V4-Flash", "mtp"),
        Model("DeepSeek-V4-Pro", "deepseek-ai--DeepSeek-V4-Pro", "mtp"),
        Model("Kimi-K2.5", "moonshotai--Kimi-K2.5"),
        Model("Kimi-K3", "moonshotai--Kimi-K3"),
        Model("GLM-5", "zai-org--GLM-5", "mtp"),
        Model("GLM-5.2", "nvidia--GLM-5.2-NVFP4", "mtp"),
        Model("GLM-5.3", "zai-org--GLM-5.3", "mtp"),
        Model("MiniMax-M2.7", "nvidia--MiniMax-M2.7-NVFP4"),
        Model("MiniMax-M3", "MiniMaxAI--MiniMax-M3"),
        Model("Step-3.7", ""),
    )
}

_D = Deployment
DEPLOYMENTS = (
    _D("Qwen3-30B-A3B", "a2", "bf16", "Qwen3-30B-A3B", 4, 1, 40960, 16384, 100, 0.95),
    _D("Qwen3-30B-A3B", "a3", "bf16", "Qwen3-30B-A3B", 4, 1, 40960, 16384, 100, 0.95),
    _D("Qwen3-30B-A3B", "950", "mxfp8", "Qwen3-30B-A3B-w8a8-mxfp8", 8, 1, 32768, 8192, 32),
    # Tutorials have 131072 and 135000 on w8a8: more than this release's 40960 positions, beyond which vLLM stops.
    _D("Qwen3-235B-A22B", "a2", "w8a8", "Qwen3-235B-A22B-w8a8-QuaRot", 8, 1, 40960, 8096, 32, 0.95),
    _D("Qwen3-235B-A22B", "a3", "bf16", "Qwen3-235B-A22B", 16, 1, 32768, 16384, 128),
    _D("Qwen3-235B-A22B", "a3", "w8a8", "Qwen3-235B-A22B-w8a8-QuaRot", 8, 2, 40960, 16384, 32, 0.85, "prefill"),
    _D("Qwen3-235B-A22B", "a3", "w8a8", "Qwen3-235B-A22B-w8a8-QuaRot", 4, 4, 32768, 512, 128, 0.9, "decode"),
    _D("Qwen3-235B-A22B", "950", "mxfp8", "Qwen3-235B-A22B-w8a8-mxfp8", 8, 1, 32768, 8192, 32),
    _D("Qwen3.5-397B-A17B", "a2", "w8a8", "Qwen3.5-397B-A17B-w8a8-mtp", 8, 2, 32768, 4096, 16),
    _D("Qwen3.5-397B-A17B", "a3", "w8a8", "Qwen3.5-397B-A17B-w8a8-mtp", 16, 1, 133000, 16384, 128),
    _D("Qwen3.5-397B-A17B", "a3", "w8a8", "Qwen3.5-397B-A17B-w8a8-mtp", 16, 1, 16384, 4096, 64, 0.9, "prefill"),
    _D("Qwen3.5-397B-A17B", "a3", "w8a8", "Qwen3.5-397B-A17B-w8a8-mtp", 16, 1, 16384, 128, 32, 0.96, "decode"),
    _D("Qwen3.5-397B-A17B", "950", "mxfp4", "Qwen3.5-397B-A17B-w4a4-mxfp4", 8, 1, 133000, 8192, 128, 0.95),
    _D("Qwen3.5-397B-A17B", "950", "mxfp4", "Qwen3.5-397B-A17B-w4a4-mxfp4", 8, 1, 133000, 8192, 64, 0.95, "prefill"),
    _D("Qwen3.5-397B-A17B", "950", "mxfp4", "Qwen3.5-397B-A17B-w4a4-mxfp4", 8, 1, 133000, 240, 64, 0.95, "decode"),
    _D("Qwen3.6-35B-A3B", "a2", "w8a8", "Qwen3.6-35B-A3B-w8a8", 2, 1, 262144, 16384, 128),
    _D("Qwen3.6-35B-A3B", "a3", "w8a8", "Qwen3.6-35B-A3B-w8a8", 2, 1, 262144, 16384, 128),
    _D("Qwen3.6-35B-A3B", "950", "mxfp8", "Qwen3.6-35B-A3B-w8a8-mxfp8", 2, 1, 262144, 16384, 128),
    _D("DeepSeek-V3.1", "a2", "w8a8", "DeepSeek-V3.1-w8a8-mtp-QuaRot", 4, 4, 16384, 4096, 16, 0.92),
    _D("DeepSeek-V3.1", "a3", "w8a8", "DeepSeek-V3.1-w8a8-mtp-QuaRot", 4, 4, 16384, 4096, 16, 0.92),
    _D("DeepSeek-V3.1", "a3", "w8a8", "DeepSeek-V3.1-w8a8-mtp-QuaRot", 8, 2, 16384, 16384, 8, 0.9, "prefill"),
    _D("DeepSeek-V3.1", "a3", "w8a8", "DeepSeek-V3.1-w8a8-mtp-QuaRot", 4, 4, 16384, 256, 64, 0.92, "decode"),
    _D("DeepSeek-V3.1", "950", "mxfp8", "DeepSeek-V3.1-w8a8-mxfp8", 8, 2, 16384, 4096, 16, 0.92),
    _D("DeepSeek-V3.2", "a2", "w8a8", "DeepSeek-V3.2-W8A8", 8, 2, 8192, 4096, 16, 0.92),
    _D("DeepSeek-V3.2", "a3", "w8a8", "DeepSeek-V3.2-W8A8", 8, 2, 8192, 4096, 16, 0.92),
    _D("DeepSeek-V3.2", "a3", "w8a8", "DeepSeek-V3.2-W8A8", 8, 2, 8192, 16384, 8, 0.9, "prefill"),
    _D("DeepSeek-V3.2", "a3", "w8a8", "DeepSeek-V3.2-W8A8", 4, 4, 8192, 256, 64, 0.92, "decode"),
    _D("DeepSeek-V3.2", "950", "mxfp8", "DeepSeek-V3.2-w8a8-mxfp8", 8, 2, 8192, 4096, 16, 0.92),
    _D("DeepSeek-V4-Flash", "a2", "w8a8", "DeepSeek-V4-Flash-w8a8-mtp", 8, 1, 133120, 8192, 32),
    _D("DeepSeek-V4-Flash", "a3", "w8a8", "DeepSeek-V4-Flash-w8a8-mtp", 4, 4, 1048576, 10240, 64),
    _D("DeepSeek-V4-Flash", "a3", "w8a8", "DeepSeek-V4-Flash-w8a8-mtp", 4, 4, 133120, 8192, 16, 0.9, "prefill"),
    _D("DeepSeek-V4-Flash", "a3", "w8a8", "DeepSeek-V4-Flash-w8a8-mtp", 2, 8, 133120, 256, 64, 0.9, "decode"),
    _D("DeepSeek-V4-Flash", "950", "published", "DeepSeek-V4-Flash", 8, 1, 133120, 8192, 32),
    _D("DeepSeek-V4-Pro", "a2", "w4a8", "DeepSeek-V4-Pro-w4a8-mtp", 16, 2, 135000, 4096, 32),
    _D("DeepSeek-V4-Pro", "a3", "w4a8", "DeepSeek-V4-Pro-w4a8-mtp", 8, 4, 135000, 4096, 16),
    _D("DeepSeek-V4-Pro", "950", "published", "DeepSeek-V4-Pro", 16, 1, 135000, 4096, 32),
    _D("Kimi-K2.5", "a2", "w4a8", "Kimi-K2.5-w4a8", 4, 4, 32768, 16384, 16),
    _D("Kimi-K2.5", "a3", "w4a8", "Kimi-K2.5-w4a8", 4, 4, 32768, 16384, 64),
    _D("Kimi-K2.5", "a3", "w4a8", "Kimi-K2.5-w4a8", 8, 2, 32768, 16384, 16, 0.9, "prefill"),
    _D("Kimi-K2.5", "a3", "w4a8", "Kimi-K2.5-w4a8", 4, 4, 32768, 256, 64, 0.9, "decode"),
    _D("Kimi-K2.5", "950", "w4a8-mxfp", "Kimi-K2.5-w4a8-mxfp", 8, 2, 32768, 16384, 16),
    _D("Kimi-K3", "a2", "w4a8", "Kimi-K3-w4a8", 8, 8, 32768, 8192, 16),
    _D("Kimi-K3", "a3", "w4a8", "Kimi-K3-w4a8", 8, 8, 32768, 8192, 16),
    _D("Kimi-K3", "950", "published", "Kimi-K3", 8, 4, 32768, 8192, 16),
    _D("GLM-5", "a2", "w4a8", "GLM5-w4a8", 8, 1, 32768, 4096, 8, 0.95),
    _D("GLM-5", "a3", "w4a8", "GLM5-w4a8", 16, 1, 200000, 4096, 16, 0.95),
    _D("GLM-5", "950", "mxfp4", "GLM5-w4a4", 8, 1, 202752, 8192, 128, 0.95),
    _D("GLM-5.2", "a2", "w8a8", "GLM-5.2-w8a8", 8, 2, 32768, 8192, 12, 0.92),
    _D("GLM-5.2", "a3", "w4a8", "GLM-5.2-w4a8c8", 8, 2, 135000, 8192, 12, 0.92),
    _D("GLM-5.2", "a3", "w4a8", "GLM-5.2-w4a8c8", 8, 2, 66000, 16384, 8, 0.9, "prefill"),
    _D("GLM-5.2", "a3", "w4a8", "GLM-5.2-w4a8c8", 8, 4, 66000, 512, 64, 0.9, "decode"),
    _D("GLM-5.2", "950", "mxfp8", "GLM-5.2-w8a8-mxfp8", 8, 2, 131072, 8192, 32),
    _D("GLM-5.3", "a2", "w8a8", "GLM-5.3-w8a8c8", 8, 4, 135000, 8192, 32, 0.92),
    _D("GLM-5.3", "a3", "w8a8", "GLM-5.3-w8a8c8", 8, 4, 135000, 8192, 128, 0.92),
    _D("GLM-5.3", "950", "mxfp8", "GLM-5.3-w8a8-mxfp8", 8, 2, 132096, 8192, 32),
    _D("MiniMax-M2.7", "a2", "w8a8", "MiniMax-M2.7-w8a8-QuaRot", 8, 1, 40690, 32768, 32, 0.85),
    _D("MiniMax-M2.7", "a3", "w8a8", "MiniMax-M2.7-w8a8-QuaRot", 4, 4, 40690, 16384, 48, 0.85),
    _D("MiniMax-M2.7", "950", "mxfp8", "MiniMax-M2.7-w8a8-mxfp8", 8, 1, 40690, 16384, 32, 0.85),
    _D("MiniMax-M3", "a2", "w8a8", "MiniMax-M3-w8a8", 4, 4, 131072, 32768, 32, 0.92),
    _D("MiniMax-M3", "a3", "w8a8", "MiniMax-M3-w8a8", 4, 4, 131072, 32768, 32, 0.92),
    _D("MiniMax-M3", "950", "mxfp8", "MiniMax-M3-w8a8-mxfp8", 4, 2, 140000, 16384, 500, 0.92),
    _D("Step-3.7", "a3", "w8a8", "Step-3.7-w8a8", 8, 2, 32768, 8192, 32),
    _D("Step-3.7", "950", "mxfp8", "Step-3.7-w8a8-mxfp8", 8, 1, 32768, 8192, 32),
)
"""Every row; one that a product cannot run has no file, and docs/configs.md says why."""

OURS = frozenset(
    {
        "qwen3-30b-a3b-950",
        "qwen3-235b-a22b-950",
        "qwen3-235b-a22b-a3-decode",
        "qwen3.6-35b-a3b-950",
        "deepseek-v3.1-a3-prefill",
        "deepseek-v3.1-a3-decode",
        "deepseek-v3.1-950",
        "deepseek-v3.2-a3-prefill",
        "deepseek-v3.2-a3-decode",
        "deepseek-v3.2-950",
        "deepseek-v4-flash-a3-prefill",
        "deepseek-v4-flash-a3-decode",
        "deepseek-v4-flash-950",
        "deepseek-v4-pro-950",
        "kimi-k2.5-a3-prefill",
        "kimi-k2.5-a3-decode",
        "kimi-k2.5-950",
        "kimi-k3-a2",
        "kimi-k3-a3",
        "kimi-k3-950",
        "glm-5.2-a2",
        "glm-5.2-a3-prefill",
        "glm-5.2-a3-decode",
        "glm-5.2-950",
        "glm-5.3-a2",
        "glm-5.3-950",
        "minimax-m2.7-950",
        "minimax-m3-a2",
        "step-3.7-a3",
        "step-3.7-950",
    }
)
"""Names of files whose sizes no tutorial has."""
