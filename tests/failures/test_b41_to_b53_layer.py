"""Failures B41 to B53 of docs/failures.md: activations, scaling, shared experts, padding, on one layer.

Layers are float32 in the twin's profile `none`, which rounds nothing to bf16, so that formulas hold to a few parts in a
million; weights are small whole numbers wherever an equality is asked for.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan, plan_layer

HIDDEN, WIDTH, EXPERTS, TOPK, TOKENS = 6, 4, 3, 2, 5


def numbers(seed: int, *shape: int) -> Tensor:
    """Whole numbers -2..2 as float32."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def rows() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]], dtype=torch.int32)
    weights = torch.tensor([[0.5, 0.25], [1.0, 0.5], [0.25, 2.0], [0.5, 0.5], [1.0, 1.0]])
    return numbers(1, TOKENS, HIDDEN), ids, weights


def run(x: Tensor, ids: Tensor, weights: Tensor, l1: list[Tensor], l2: list[Tensor], **options: Any) -> Tensor:
    with settings(profile="none"):
        buffer = get_symm_buffer_for_mega_moe(None, len(l1), len(x), ids.shape[1], x.shape[1], l2[0].shape[0])
        y, _ = mega_moe(x, ids, weights, l1, l2, buffer, **options)
    buffer.destroy()
    return y


def experts(seed: int = 2, count: int = EXPERTS) -> tuple[list[Tensor], list[Tensor]]:
    """[H, 2I] and [I, H] for each expert."""
    first = [numbers(seed + e, HIDDEN, 2 * WIDTH) for e in range(count)]
    return first, [numbers(seed + 50 + e, WIDTH, HIDDEN) for e in range(count)]


def one_channel(gate: float, up: float, **options: Any) -> float:
    """What a single channel with these pre-activations gives."""
    x, ids, weights = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    l1, l2 = torch.tensor([[gate, up], [0.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    return float(run(x, ids, weights, [l1], [l2], **options)[0, 0])


def silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def test_b41_a_clamp_bounds_the_gate_from_above_only() -> None:
    """g -20, c 10: bounded on both sides it would be -4.5e-3 instead of -4.1e-7."""
    got = one_channel(-20.0, 30.0, activation_clamp=10.0)
    assert got == pytest.approx(silu(-20.0) * 10.0, rel=1e-6)
    assert got == pytest.approx(-4.1e-7, rel=0.01)
    assert silu(-10.0) * 10.0 == pytest.approx(-4.5e-3, rel=0.01)
    assert one_channel(20.0, -30.0, activation_clamp=10.0) == pytest.approx(silu(10.0) * -10.0, rel=1e-6)


def test_b41_the_routed_path_gets_the_models_limit() -> None:
    layer = MoeFacts("l", 8, 2, 64, 32, activation=ActivationFacts(limit=10.0))
    found = plan_layer(EngineFacts("bfloat16"), layer, Options()).activation
    assert (found.name, found.clamp) == ("swiglu", 10.0)


def test_b43_oai_is_not_plain_swiglu() -> None:
    """MiniMax-M3: clamp 7, alpha 1.702, beta 1."""
    got = one_channel(
        2.0, 3.0, activation="swigluoai", activation_clamp=7.0, activation_params={"alpha": 1.702, "beta": 1.0}
    )
    assert got == pytest.approx(2.0 / (1 + math.exp(-1.702 * 2.0)) * (3.0 + 1.0), rel=1e-6)
    assert abs(got - silu(2.0) * 3.0) > 1.0
    layer = MoeFacts("l", 8, 2, 64, 32, activation=ActivationFacts("swigluoai_uninterleave", 7.0, 1.702, 1.0))
    found = plan_layer(EngineFacts("bfloat16"), layer, Options()).activation
    assert (found.name, found.clamp, dict(found.params)) == ("swigluoai", 7.0, {"alpha": 1.702, "beta": 1.0})


def test_b43_an_unknown_activation_is_rejected_and_never_silu() -> None:
    layer = MoeFacts("l", 8, 2, 64, 32, activation=ActivationFacts("gelu"))
    with pytest.raises(ConfigError, match="activation 'gelu'; expected one of silu"):
        make_plan(EngineFacts("bfloat16"), [layer], Options())


@pytest.mark.parametrize("linear_beta", [None, 25.0])
def test_b44_situ_uses_both_of_its_parameters(linear_beta: float | None) -> None:
    """Kimi-K3: beta 4, linear_beta 25; the routed hidden 3584 beside the model's 7168."""
    params = {"beta": 4.0} if linear_beta is None else {"beta": 4.0, "linear_beta": linear_beta}
    gate, up = 5.0, 60.0
    linear = up if linear_beta is None else linear_beta * math.tanh(up / linear_beta)
    expected = 4.0 * math.tanh(gate / 4.0) / (1 + math.exp(-gate)) * linear
    assert one_channel(gate, up, activation="situglu", activation_params=params) == pytest.approx(expected, rel=1e-6)
    facts = ActivationFacts("situ", beta=4.0, linear_beta=linear_beta)
    layer = MoeFacts("l", 896, 16, 3584, 3072, activation=facts, model_hidden=7168)
    found = plan_layer(EngineFacts("bfloat16"), layer, Options())
    assert (found.activation.name, dict(found.activation.params)) == ("situglu", params)
    assert found.buffer.hidden == 3584


@pytest.mark.parametrize("scale", [0.25, 2.0])
def test_b45_the_router_weights_are_all_the_scaling_there_is(scale: float) -> None:
    x, ids, weights = rows()
    l1, l2 = experts()
    assert run(x, ids, weights * scale, l1, l2).equal(run(x, ids, weights, l1, l2) * scale)


@pytest.mark.parametrize(("on_output", "fuse", "folded"), [(True, "on", 2.5), (True, "off", 1.0), (False, "on", 1.0)])
def test_b45_a_routed_scaling_factor_is_applied_in_one_place(on_output: bool, fuse: str, folded: float) -> None:
    """In the weights already, by the model's code on the output, or folded by us where shared experts are fused."""
    layer = MoeFacts(
        "l", 8, 2, 64, 32, routed_scaling_factor=2.5, scale_on_output=on_output, shared=SharedFacts(64, 64)
    )
    assert plan_layer(EngineFacts("bfloat16"), layer, Options(fuse_shared_experts=fuse)).fold_scaling == folded  # type: ignore[arg-type]


def test_b48_a_model_that_reduces_the_finished_rows_again_is_rejected() -> None:
    engine = EngineFacts("bfloat16", tensor_parallel=2, expert_parallel=True)
    with pytest.raises(ConfigError, match=r"the model reduces the layer's output itself"):
        make_plan(engine, [MoeFacts("l", 8, 2, 64, 32, skips_reduction=True)], Options())


def mlp(x: Tensor, l1: Tensor, l2: Tensor) -> Tensor:
    gate, up = (x.double() @ l1.double()).chunk(2, dim=1)
    return (gate / (1 + torch.exp(-gate)) * up) @ l2.double()


def test_b50_shared_experts_are_added_once() -> None:
    """Once, twice, never and half of them are told apart."""
    x, ids, weights = rows()
    (l1, l2), (s1, s2) = experts(), experts(seed=20, count=2)
    routed = run(x, ids, weights, l1, l2)
    both = run(x, ids, weights, l1, l2, shared_l1_weights=s1, shared_l2_weights=s2)
    shares = [mlp(x, a, b) for a, b in zip(s1, s2, strict=True)]
    # Some 20 float32 operations on values below 1000: 20 * 2^-24 * 1000 is 1.2e-3
    close = {"rtol": 0.0, "atol": 2e-3}
    torch.testing.assert_close((both - routed).double(), shares[0] + shares[1], **close)
    for wrong in (2 * (shares[0] + shares[1]), torch.zeros_like(shares[0]), shares[0]):
        assert (both - routed - wrong).abs().max() > 0.1


def test_b50_nothing_is_written_into_the_rows() -> None:
    x, ids, weights = rows()
    l1, l2 = experts()
    before = [t.clone() for t in (x, ids, weights, *l1, *l2)]
    run(x, ids, weights, l1, l2, shared_l1_weights=l1[:1], shared_l2_weights=l2[:1])
    assert all(a.equal(b) for a, b in zip(before, (x, ids, weights, *l1, *l2), strict=True))


def test_b50_shared_experts_run_in_one_place_only() -> None:
    layer = MoeFacts("l", 8, 2, 64, 32, shared=SharedFacts(64, 64))
    found = {
        fuse: plan_layer(EngineFacts("bfloat16"), layer, Options(fuse_shared_experts=fuse)).shared
        for fuse in ("on", "off")
    }  # type: ignore[arg-type]
    assert {fuse: (s.mode, s.pieces) for fuse, s in found.items()} == {"on": ("fused", 2), "off": ("vllm", 0)}


def test_b52_zeros_in_the_width_change_nothing() -> None:
    """Gate and up are padded each by itself; zeros behind both would pair gates with other ups."""
    x, ids, weights = rows()
    l1, l2 = experts()
    nothing = torch.zeros(HIDDEN, 3)
    wide1 = [torch.cat([w[:, :WIDTH], nothing, w[:, WIDTH:], nothing], dim=1) for w in l1]
    wide2 = [torch.cat([w, torch.zeros(3, HIDDEN)]) for w in l2]
    plain = run(x, ids, weights, l1, l2)
    # Zero products change no sum; the order of the others may change with the width of the GEMM: 7 terms below 1000.
    torch.testing.assert_close(run(x, ids, weights, wide1, wide2), plain, rtol=0.0, atol=7 * 2**-24 * 1000 * 2)
    fused = [torch.cat([w, nothing, nothing], dim=1) for w in l1]
    assert (run(x, ids, weights, fused, wide2) - plain).abs().max() > 0.1


def test_b52_padding_has_a_price_and_a_limit() -> None:
    """Qwen3-30B-A3B on A3 pays a third more; half as wide it would pay double, rejected until the user agrees."""
    engine = EngineFacts("bfloat16", 16, expert_parallel=True)
    qwen = MoeFacts("l", 128, 8, 2048, 768)
    assert plan_layer(engine, qwen, Options(profile="a3@9.1")).padding.overhead == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match="max_padding_overhead"):
        plan_layer(engine, MoeFacts("l", 128, 8, 2048, 512), Options(profile="a3@9.1"))
