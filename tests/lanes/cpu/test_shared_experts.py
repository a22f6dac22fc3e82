"""B50: a fused shared MLP leaves vLLM's path whole, once, and with its weights as the checkpoint had them.

Two tensor-parallel ranks with vLLM's real linears, loaded by vLLM's own loaders and processed as vLLM does; the runner
around them is a stand-in with the attributes that vLLM 0.32's MoERunner has.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from vllm_megamoe.testing.ranks import World

HIDDEN, WIDTH = 96, 64


def checkpoint() -> dict[str, torch.Tensor]:
    """BF16 gate and up [S, H] and down [H, S]: every row differs from every other."""
    g = torch.Generator().manual_seed(1)
    shapes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    return {name: torch.randn(shape, generator=g).to(torch.bfloat16) for name, shape in shapes.items()}


class Mlp(nn.Module):
    """As vLLM's models build a shared MLP; `whole` is what they do under sequence parallelism."""

    def __init__(self, whole: bool, fused_config: Any) -> None:
        from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear

        super().__init__()
        same = {"bias": False, "disable_tp": whole, "quant_config": fused_config}
        self.gate_up_proj = MergedColumnParallelLinear(HIDDEN, [WIDTH] * 2, prefix="m.shared.gate_up_proj", **same)
        self.down_proj = RowParallelLinear(WIDTH, HIDDEN, reduce_results=False, prefix="m.shared.down_proj", **same)

    def load(self) -> None:
        """As vLLM does once the whole model is built."""
        loaded = checkpoint()
        for linear, tensor, more in (
            (self.gate_up_proj, loaded["gate"], (0,)),
            (self.gate_up_proj, loaded["up"], (1,)),
            (self.down_proj, loaded["down"], ()),
        ):
            linear.weight.weight_loader(linear.weight, tensor, *more)


class Runner(nn.Module):
    """What the lane touches of a MoERunner."""

    def __init__(self, mlp: Mlp, method: Any, factor: float) -> None:
        super().__init__()
        self.layer_name = "m.experts"
        self.routed_experts = nn.Module()
        self.routed_experts.quant_method = method
        self._shared_experts = nn.Module()
        self._shared_experts._layer = mlp
        self.routed_scaling_factor = factor
        self._forward_entry = "with shared experts"

    def _select_forward(self) -> str:
        return "routed experts alone" if self._shared_experts is None else "with shared experts"


def run(whole: bool, mode: str, factor: float, fold: float) -> dict[str, Any]:
    """Build, load, process and take, as one rank; returns what is left and what was taken."""
    from types import SimpleNamespace

    from vllm.config import VllmConfig, set_current_vllm_config

    from vllm_megamoe.lanes.cpu.shared_experts import take_shared
    from vllm_megamoe.lanes.moe_method import MegaMoeMethod
    from vllm_megamoe.lanes.quant_config import MegaMoeConfig

    torch.set_default_dtype(torch.bfloat16)
    config = VllmConfig()
    with set_current_vllm_config(config):
        join()
        plan: Any = SimpleNamespace(shared=SimpleNamespace(mode=mode, pieces=1), fold_scaling=fold)
        method = MegaMoeMethod.__new__(MegaMoeMethod)
        method.plan, method._is_whole = plan, True
        mlp = Mlp(whole, MegaMoeConfig())
        runner = Runner(mlp, method, factor)
        config.compilation_config.static_forward_context["m.experts"] = runner
        mlp.load()
        linears = (mlp.gate_up_proj, mlp.down_proj)
        for linear in linears:
            linear.quant_method.process_weights_after_loading(linear)
        kept = [linear.weight.numel() for linear in linears]
        packed = [hasattr(linear, "cpu_linear") for linear in linears]
        given: list[Any] = []
        if mode == "fused":
            take_shared(runner, plan, given.append)
        taken = [weight[0].float() for experts in given for weight in (experts.w13, experts.w2)]
    left = [linear.weight.numel() for linear in linears]
    return {
        "kept": kept,
        "packed": packed,
        "taken": taken,
        "left": left,
        "entry": runner._forward_entry,
        "has_shared": runner._shared_experts is not None,
        "factor": runner.routed_scaling_factor,
    }


def join() -> None:
    """Make vLLM's tensor-parallel group over the world's ranks, once."""
    from torch import distributed as dist
    from vllm.distributed import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized

    if not model_parallel_is_initialized():
        # vLLM's shared-memory collectives, where the processor has them, name their segments after this.
        os.environ.setdefault("VLLM_DIST_IDENT", f"test_shared_experts_{os.getppid()}")
        init_distributed_environment(dist.get_world_size(), dist.get_rank(), local_rank=dist.get_rank(), backend="gloo")
        initialize_model_parallel(dist.get_world_size())


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    world = World(2)
    yield world
    world.stop()


@pytest.mark.parametrize("whole", [False, True], ids=["cut over two ranks", "whole on each rank"])
def test_every_rank_takes_the_whole_mlp(whole: bool, ranks: World) -> None:
    loaded = checkpoint()
    for found in ranks.run(run, [(whole, "fused", 2.5, 2.5)] * 2, limit_s=120):
        w13, w2 = found["taken"]
        assert w13.equal(torch.cat([loaded["gate"], loaded["up"]]).float())
        assert w2.equal(loaded["down"].float())
        # Not packed and not emptied before, empty after: the module holds no memory.
        share = WIDTH if whole else WIDTH // 2
        assert (found["kept"], found["packed"]) == ([2 * share * HIDDEN, share * HIDDEN], [False, False])
        assert found["left"] == [0, 0]


def test_vllms_own_path_is_off_afterwards(ranks: World) -> None:
    """The MLP is added once, by the operator; the factor is on the router weights once, not on the output too."""
    for found in ranks.run(run, [(False, "fused", 2.5, 2.5)] * 2, limit_s=120):
        assert (found["entry"], found["has_shared"], found["factor"]) == ("routed experts alone", False, 1.0)


def test_an_mlp_that_is_not_fused_is_packed_as_ever(ranks: World) -> None:
    for found in ranks.run(run, [(False, "vllm", 2.5, 1.0)] * 2, limit_s=120):
        assert found["packed"] == [True, True]
        assert (found["entry"], found["has_shared"], found["factor"]) == ("with shared experts", True, 2.5)


@pytest.mark.parametrize(("factor", "fold"), [(2.5, 1.0), (1.0, 2.5)])
def test_b45_a_factor_that_the_plan_did_not_expect_is_rejected(factor: float, fold: float, ranks: World) -> None:
    """The runner would scale the shared part too, or nobody would scale the routed one."""
    for failure in ranks.outcomes(run, [(False, "fused", factor, fold)] * 2, limit_s=120):
        assert failure.kind == "ConfigError"
        assert f"multiplies the output by {factor:g}, the plan expected {fold:g}" in failure.message
