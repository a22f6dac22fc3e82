"""Runs with `vllm_megamoe.simulator.install`'s folder on PYTHONPATH and prints what it sees, as JSON.

`installed.py one` looks around alone; `installed.py RANK STORE` is a rank of two that call the operator's extensions.
"""

import json
import sys
from typing import Any

import torch
import torch_npu  # type: ignore[import-not-found]
from torch import distributed as dist

NZ = 29


def rejection(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def formats() -> dict[str, Any]:
    """Whether formats survive what vllm-ascend does with its weights."""
    stack = torch.arange(3 * 64 * 96, dtype=torch.int32).to(torch.int8).view(3, 64, 96)
    on = torch_npu.npu.config.allow_internal_format
    torch_npu.npu.config.allow_internal_format = False
    plain = torch_npu.npu_format_cast(stack, NZ)
    off = torch_npu.get_npu_format(plain)
    torch_npu.npu.config.allow_internal_format = True
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(stack.clone(), requires_grad=False)
    layer.weight.weight_loader = "ours"
    before = id(layer.weight)
    layer.weight.data = torch_npu.npu_format_cast(layer.weight.data, NZ)
    parts = [part.clone().view(torch.int32) for part in layer.weight.data.unbind(0)]
    back = [torch_npu.npu_format_cast(part.view(torch.int8), 2) for part in parts]
    return {
        "on": on,
        "off": off,
        "parameter": torch_npu.get_npu_format(layer.weight),
        "same object": id(layer.weight) == before and layer.weight is dict(layer.named_parameters())["weight"],
        "attribute": layer.weight.weight_loader,
        "is parameter": isinstance(layer.weight, torch.nn.Parameter),
        "parts": [torch_npu.get_npu_format(part) for part in parts],
        "shapes": [list(part.shape) for part in parts],
        "back": torch.equal(torch.stack(back), stack),
        "plain again": plain_again(layer),
        "four dimensions": torch_npu.get_npu_format(torch.zeros(1, 2, 3, 4)),
    }


def plain_again(layer: torch.nn.Module) -> bool:
    other = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    other.data = torch.ones(4)
    return other.shape == (4,) and torch_npu.get_npu_format(other) == 2


def devices() -> list[str]:
    return [
        str(torch.empty(2, device="npu").device),
        str(torch.zeros(2).to("npu:0").device),
        str(torch.tensor([1], device=torch.npu.current_device()).device),
        str(torch.zeros(2).to(torch.device("npu", 0)).device),
        str(torch.zeros(3).npu().device),
    ]


def kernels() -> list[Any]:
    """A router of 4 experts in 2 groups, one of which is open; the bias opens the other one."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    plain = torch_npu.npu_moe_gating_top_k(logits, 2, norm_type=0)
    bias = torch.tensor([0.0, 0.0, 5.0, 5.0])
    grouped = torch.ops._C_ascend.moe_gating_top_k(logits, 2, 1, 2, 1, 0, 1, False, 2.5, 1e-20, bias)
    renormalised = torch.ops._C_ascend.moe_gating_top_k(logits, 2, 1, 1, 0, 1, 0, False, 1.0, 1e-20)
    gate = torch.tensor([[1.0, -2.0]])
    return [
        plain[1].tolist(),
        torch.allclose(plain[0], logits.softmax(-1)[:, :2]),
        torch.allclose(renormalised[0], logits[:, :2].softmax(-1)),
        grouped[1].tolist(),
        torch.allclose(grouped[0].sum(), torch.tensor(2.5)),
        torch.allclose(torch_npu.npu_swiglu(torch.cat([gate, gate], -1)), gate * gate.sigmoid() * gate),
    ]


def libraries() -> list[int]:
    """An operator of the package, registered for the NPU as its wrapper does, sees formats."""
    library = torch.library.Library("cann_ops_transformer", "DEF")
    library.define("npu_mega_moe(Tensor x, Tensor[] weights) -> Tensor")
    seen: list[int] = []

    def kernel(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        seen.extend(torch_npu.get_npu_format(weight) for weight in weights)
        return x + 1

    library.impl("npu_mega_moe", kernel, "PrivateUse1")
    weights = [torch_npu.npu_format_cast(torch.zeros(32, 64, dtype=torch.int8), fmt) for fmt in (NZ, 2)]
    y = torch.ops.cann_ops_transformer.npu_mega_moe(torch.zeros(2), weights)
    return [*seen, int(y.sum())]


def alone() -> dict[str, Any]:
    from torch.utils.cpp_extension import load

    return {
        "file": torch_npu.__file__.endswith("on_path/torch_npu/__init__.py"),
        "formats": formats(),
        "devices": devices(),
        "kernels": kernels(),
        "libraries": libraries(),
        "unknown operator": rejection(torch_npu.npu_fusion_attention, 1),
        "unknown name": rejection(lambda: torch_npu.something),
        "unknown class": [isinstance(torch_npu.Anything, type), isinstance(torch.npu.ExternalEvent, type)],
        "another extension": rejection(load(name="npu_other", sources=[]).npu_other, 1),
        "again": rejection(__import__("vllm_megamoe.simulator.install", fromlist=["install"]).install, "a2@9.1"),
        "build": sys.modules["vllm_ascend._build_info"].__device_type__,  # type: ignore[attr-defined]
        "soc": torch.npu.get_soc_version(),
    }


def one_of_two(rank: int, store: str) -> dict[str, Any]:
    """The operator's own way to a call: communicator, size, context, extension."""
    from torch.utils.cpp_extension import load

    dist.init_process_group("hccl", init_method=f"file://{store}", rank=rank, world_size=2)
    group = dist.new_group([0, 1])
    backend = group._get_backend(torch.device("npu"))
    early = rejection(backend.get_hccl_comm_name, rank, False)
    name = backend.get_hccl_comm_name(rank)
    extension = load(name="npu_mega_moe", sources=[])
    size = extension.get_mega_moe_ccl_buffer_size(2, 4, 6, 2, 1024, 0, 0, None, 0, "")
    manager = load(name="comm_context", sources=[]).CommContextManager(name, 2, backend={}, customCclBufferSize=size)
    context = manager.create_context()
    x = torch.full((6, 1024), 1.0 + rank, dtype=torch.bfloat16)
    ids = torch.tensor([[0, 3]] * 6, dtype=torch.int32)
    # A row is the square of 512 * (1 + its source) / (1 + its expert's rank): silu(g) is g, and 1024 * 2^-10 is 1.
    weight1 = [torch.full((1024, 2048), 0.5 / (1 + rank), dtype=torch.bfloat16) for _ in range(2)]
    weight2 = [torch.full((1024, 1024), 2.0**-10, dtype=torch.bfloat16) for _ in range(2)]
    weights = torch.tensor([[0.5, 0.25]] * 6)
    lists = [None] * 4
    rest = [0, 0, 0, "", 6, "swiglu", None, None, None, None]
    y, counts = extension.npu_mega_moe(
        context, x, ids, weights, weight1, weight2, 4, 2, manager.ccl_buffer_size, *lists, None, *rest
    )
    dist.barrier(group)
    return {
        "early": early,
        "names": [name == backend.get_hccl_comm_name(rank, init_comm=False), name.startswith("hccl_")],
        "size": size,
        "window": manager.ccl_buffer_size,
        "y": sorted(set(y.float().flatten().tolist())),
        "counts": counts.tolist(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(alone() if sys.argv[1] == "one" else one_of_two(int(sys.argv[1]), sys.argv[2])))
