"""Tensors that vLLM's models have no place for: a norm gets a bias, scales of a cache go."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vllm.model_executor.models.utils import WeightsMapper

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.lanes.cpu import gaps
from vllm_megamoe.lanes.quant_config import MegaMoeConfig

pytestmark = pytest.mark.usefixtures("vllm_here")

LINEAR = "model.layers.0.self_attn.o_proj"


def described(**tensors: str) -> MegaMoeConfig:
    """The config of an engine whose checkpoint's description lists these tensors."""
    from vllm.config import get_current_vllm_config

    config = MegaMoeConfig()
    config.side_files = {"quant_model_description.json": dict(tensors)}
    get_current_vllm_config().quant_config = config
    return config


def norm(size: int = 64) -> Any:
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm

    gaps.start(get_current_vllm_config())
    return RMSNorm(size)


def test_a_norm_adds_the_bias_that_the_checkpoint_has() -> None:
    """y = w x / rms(x) + b, and the residual stays without it."""
    described(**{"model.layers.0.input_layernorm.bias": "FLOAT"})
    layer = norm()
    g = torch.Generator().manual_seed(1)
    x, residual, bias = (torch.randn(5, 64, generator=g).bfloat16() for _ in range(3))
    bias = bias[0]
    dict(layer.named_parameters())["bias"].data.copy_(bias)

    def expected(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.double()
        return rows / rows.square().mean(dim=1, keepdim=True).add(1e-6).sqrt() + bias.double()

    alone = layer(x)
    behind, total = layer(x.clone(), residual.clone())
    assert total.equal(x + residual)
    # Roundings to BF16 after the norm and after the sum: half a step each, of numbers below 8.
    assert float((alone.double() - expected(x)).abs().max()) <= 2 * 8 * 2.0**-9
    assert float((behind.double() - expected(total)).abs().max()) <= 2 * 8 * 2.0**-9


def test_an_engine_whose_checkpoint_has_none_gets_vllms_norm() -> None:
    """Also in a process that has served another one."""
    described(**{"model.norm.bias": "FLOAT"})
    assert hasattr(norm(), "bias")
    described(**{f"{LINEAR}.weight": "FLOAT"})
    layer = norm()
    assert not hasattr(layer, "bias")
    assert type(layer).name == "rms_norm"


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_that_a_linear_has_no_place_for(value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """0 is left out and said; any other number would be missing in every result."""
    from vllm.config import get_current_vllm_config

    save_file({f"{LINEAR}.bias": torch.full((8,), value)}, tmp_path / "quant_model_weights-00001-of-00001.safetensors")
    config = described(**{f"{LINEAR}.bias": "FLOAT"})
    get_current_vllm_config().model_config = SimpleNamespace(model=str(tmp_path))
    if value:
        with pytest.raises(CheckpointError, match=rf"{LINEAR}\.bias is not 0"):
            gaps.check_bias([LINEAR], config)
        return
    with caplog.at_level(logging.INFO):
        gaps.check_bias([LINEAR], config)
    assert f"{LINEAR}.bias is 0 everywhere and left out" in caplog.text


def test_scales_of_a_quantised_cache_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """C8 and FAKQuant; nothing else is lost on the way, and `g_idx` least of all."""
    home = "model.layers.0.self_attn"
    unused = [f"{home}.k_proj.kv_cache_scale", f"{home}.v_proj.kv_cache_offset", f"{home}.fa_k.scale"]
    kept = [f"{home}.k_proj.weight_scale", f"{home}.k_proj.g_idx", "model.layers.0.mlp.experts.0.up_proj.weight_offset"]
    config = described(**dict.fromkeys([*unused, *kept], "FAKQuant"))
    mapper = config.get_checkpoint_weight_mapper()
    assert isinstance(mapper, WeightsMapper)
    assert [name for name, _ in mapper.apply((name, torch.empty(0)) for name in [*unused, *kept])] == kept
    with caplog.at_level(logging.WARNING):
        norm()
    assert f"3 tensors of a quantised KV cache or attention ({unused[0]}, ...) are not used" in caplog.text


def test_sigmoid_routing_without_groups() -> None:
    """MiniMax-M2: the largest of sigmoid + bias are chosen, their weights are the sigmoids, to a sum of 1."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    gaps.start(get_current_vllm_config())
    g = torch.Generator().manual_seed(2)
    logits, bias = (torch.randn(shape, generator=g, dtype=torch.float32) for shape in ((7, 8), (8,)))
    router = CPURouter.__new__(CPURouter)
    router.__dict__ |= {
        "scoring_func": "sigmoid",
        "use_grouped_topk": False,
        "custom_routing_function": None,
        "top_k": 2,
        "renormalize": True,
        "routed_scaling_factor": 1.0,
        "e_score_correction_bias": bias,
    }
    weights, ids = router._compute_routing(torch.empty(7, 4), logits, torch.int32)
    order = ids.long().argsort(dim=1)
    chosen = (logits.sigmoid() + bias).topk(2, dim=1).indices.sort(dim=1).values
    assert ids.long().sort(dim=1).values.equal(chosen)
    expected = logits.sigmoid().gather(1, chosen)
    torch.testing.assert_close(weights.gather(1, order), expected / expected.sum(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("family", "triton", "lines"), [("deepseek_v4", False, 1), ("deepseek_v4", True, 0), ("qwen3_moe", False, 0)]
)
def test_attention_that_needs_triton_is_told(
    family: str, triton: bool, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, at the start: its first request would end the engine with a TypeError that names nothing."""
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", triton)
    gaps._tell_of_triton.cache_clear()
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(model_type=family)), quant_config=None
    )
    with caplog.at_level(logging.WARNING, "vllm_megamoe"):
        for _ in range(2):
            gaps.start(config)
    assert [record.message.count("triton-cpu") > 0 for record in caplog.records] == [True] * lines
