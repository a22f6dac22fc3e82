"""Linears of quantised checkpoints: what reaches vLLM's weight, against readings that share no code.

vLLM's real linears, loaded tensor by tensor as its models' loaders do; two tensor-parallel ranks are two layers that
are told their rank.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from formats.dequantised import bfloat16, quantised_modules, tensor_of, values_of
from formats.fixtures import FIXTURES
from formats.readings.store import Store
from safetensors import safe_open

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.lanes.quant_config import MegaMoeConfig, read_side_files

pytestmark = pytest.mark.usefixtures("vllm_here")


@dataclass(frozen=True)
class Part:
    """A projection of the checkpoint within a linear of vLLM's."""

    name: str
    shard: Any = None


ATTENTION = {
    "qkv_proj": (Part("q_proj", "q"), Part("k_proj", "k"), Part("v_proj", "v")),
    "o_proj": (Part("o_proj"),),
}
LATENT = {
    "fused_qkv_a_proj": (Part("q_a_proj", 0), Part("kv_a_proj_with_mqa", 1)),
    "q_b_proj": (Part("q_b_proj"),),
    "kv_b_proj": (Part("kv_b_proj"),),
    "o_proj": (Part("o_proj"),),
}
MLP = {"gate_up_proj": (Part("gate_proj", 0), Part("up_proj", 1)), "down_proj": (Part("down_proj"),)}

FOLDERS = [fixture.folder for fixture in FIXTURES if fixture.format != "bf16" and not fixture.refused]


def linears_of(config: dict[str, Any]) -> dict[str, tuple[Part, ...]]:
    """vLLM's linears of layer 0, and of a shared MLP, by prefix."""
    latent = "kv_lora_rank" in config
    found = {f"model.layers.0.self_attn.{name}": parts for name, parts in (LATENT if latent else ATTENTION).items()}
    if latent:
        found |= {f"model.layers.0.mlp.{name}": parts for name, parts in MLP.items()}
        found |= {f"model.layers.1.mlp.shared_experts.{name}": parts for name, parts in MLP.items()}
    if config["model_type"] == "qwen2_moe":
        found |= {f"model.layers.0.mlp.shared_expert.{name}": parts for name, parts in MLP.items()}
    return found


def build(
    prefix: str, parts: tuple[Part, ...], sizes: dict[str, tuple[int, int]], config: MegaMoeConfig, bias: bool = False
) -> Any:
    """vLLM's linear of that prefix, kept unpacked so that its weight can be read."""
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )

    same: dict[str, Any] = {"bias": bias, "quant_config": config, "prefix": prefix}
    rows, columns = [sizes[part.name][0] for part in parts], sizes[parts[0].name][1]
    if parts[0].shard == "q":
        head = 64
        linear: Any = QKVParallelLinear(columns, head, rows[0] // head, rows[1] // head, **same)
    elif len(parts) > 1:
        whole = prefix.endswith("fused_qkv_a_proj")  # latent attention keeps it on every rank
        linear = MergedColumnParallelLinear(columns, rows, disable_tp=whole, **same)
    elif prefix.endswith(("o_proj", "down_proj")):
        linear = RowParallelLinear(columns, rows[0], reduce_results=False, **same)
    else:
        linear = ColumnParallelLinear(columns, rows[0], **same)
    linear._cpu_skip_gemm_dispatch = True
    return linear


def load(linear: Any, home: str, parts: tuple[Part, ...], tensors: dict[str, torch.Tensor]) -> None:
    """As a model's load_weights: every tensor of the file to the parameter of its name, with the part of the layer."""
    parameters = dict(linear.named_parameters())
    for part in parts:
        prefix = f"{home}.{part.name}."
        for name in [name for name in tensors if name.startswith(prefix)]:
            parameter = parameters.get(name.removeprefix(prefix))
            if parameter is not None:
                more = () if part.shard is None else (part.shard,)
                parameter.weight_loader(parameter, tensors[name], *more)


def config_of(folder: Path, store: Store) -> MegaMoeConfig:
    """As vLLM makes it, with no class of vLLM's for the linears."""
    found = MegaMoeConfig(store.config.get("quantization_config"))
    found.side_files = read_side_files(str(folder), None)
    found.__dict__["inner"] = None
    return found


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """What vLLM's linears and parameters ask for their place."""
    for module in ("layers.linear", "parameter"):
        path = f"vllm.model_executor.{module}.get_tensor_model_parallel_"
        monkeypatch.setattr(f"{path}rank", lambda: rank)
        monkeypatch.setattr(f"{path}world_size", lambda: size)


def shard(whole: torch.Tensor, parts: tuple[Part, ...], prefix: str, rank: int, size: int) -> torch.Tensor:
    """A rank's share of one projection, as vLLM's documentation of its linears says: rows, or columns behind a cut."""
    if prefix.endswith("fused_qkv_a_proj"):
        return whole
    return whole.chunk(size, dim=1 if prefix.endswith(("o_proj", "down_proj")) else 0)[rank]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_linear_has_the_numbers_of_its_checkpoint(
    folder: str, size: int, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank's weight equals the reading of the whole, rounded once to BF16 and cut."""
    source = shared_dir / "fixtures" / f"{folder}__s0"
    store = Store.open(source)
    with safe_open(next(source.glob("*.safetensors")), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config, quantised = config_of(source, store), set(quantised_modules(store))
    for prefix, parts in linears_of(dict(store.config)).items():
        home = prefix.rpartition(".")[0]
        whole = {}
        for part in parts:
            name = f"{home}.{part.name}."
            raw = store.raw(f"{name}weight") if name not in quantised else None
            whole[part.name] = tensor_of(raw) if raw else bfloat16(values_of(store, folder, name))
        sizes = {name: (w.shape[0], w.shape[1]) for name, w in whole.items()}
        for rank in range(size):
            as_rank(monkeypatch, rank, size)
            # Qwen2's attention; a tool's own bias (v0) is in the integers.
            bias = store.config["model_type"] == "qwen2_moe" and prefix.endswith("qkv_proj")
            linear = build(prefix, parts, sizes, config, bias)
            load(linear, home, parts, tensors)
            linear.quant_method.process_weights_after_loading(linear)
            expected = torch.cat([shard(whole[part.name], parts, prefix, rank, size) for part in parts])
            assert linear.weight.dtype == torch.bfloat16
            found = linear.weight.data
            assert found.shape == expected.shape
            # Scales of two factors (NVFP4, static INT8) are rounded to float32 once more on the way, so a number at the
            # middle between two of BF16 may go to the other one: a step, 2^-7 of a number at the most.
            slack = 2.0**-7 if "NVFP4" in folder or "__v0_qwen3" in folder else 0.0
            off = (found.double() - expected.double()).abs() > slack * expected.double().abs()
            assert not off.any(), f"{prefix}, rank {rank}: {int(off.sum())} numbers of {off.numel()}"
            assert {name for name, _ in linear.named_parameters()} - {"bias", "static_bias"} == {"weight"}


@pytest.mark.parametrize("lost", ["q_proj.weight", "v_proj.weight_scale", "k_proj"])
def test_a_tensor_that_is_missing_is_named(lost: str, shared_dir: Path) -> None:
    linear, tensors = attention(shared_dir)
    kept = {name: tensor for name, tensor in tensors.items() if lost not in (name[-len(lost) :], name.split(".")[-2])}
    load(linear, HOME, ATTENTION["qkv_proj"], kept)
    with pytest.raises(CheckpointError, match=lost.replace(".", r"\.")):
        linear.quant_method.process_weights_after_loading(linear)


def test_a_tensor_of_another_shape_is_named(shared_dir: Path) -> None:
    """A file of a wider model would else be cut in silence: vLLM takes a rank's rows of whatever it is given."""
    linear, tensors = attention(shared_dir)
    name = f"{HOME}.q_proj.weight"
    wrong = tensors | {name: torch.cat([tensors[name]] * 2)}
    with pytest.raises(CheckpointError, match=r"q_proj\.weight has shape \[512, 256\]; expected \[256, 256\]"):
        load(linear, HOME, ATTENTION["qkv_proj"], wrong)


def test_codes_that_vllm_gives_in_reused_memory_are_kept(shared_dir: Path) -> None:
    """Some loaders fill one buffer again and again."""
    linear, tensors = attention(shared_dir)
    load(linear, HOME, ATTENTION["qkv_proj"], tensors)
    expected = linear.weight.data.clone()
    again, _ = attention(shared_dir)
    for part in ATTENTION["qkv_proj"]:
        for name, tensor in tensors.items():
            if name.startswith(f"{HOME}.{part.name}."):
                buffer = tensor.clone()
                parameter = dict(again.named_parameters())[name.rpartition(".")[2]]
                parameter.weight_loader(parameter, buffer, part.shard)
                buffer.view(torch.uint8).fill_(7)
    assert again.weight.data.equal(expected)


HOME = "model.layers.0.self_attn"


def attention(shared_dir: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The fused attention projections of a W8A8_DYNAMIC checkpoint, not loaded, and its tensors."""
    source = shared_dir / "fixtures" / "qwen3_moe__msmodelslim__w8a8_dynamic__s0"
    config = config_of(source, Store.open(source))
    with safe_open(next(source.glob("*.safetensors")), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if HOME in name}  # noqa: SIM118
    sizes = {"q_proj": (256, 256), "k_proj": (128, 256), "v_proj": (128, 256)}
    return build(f"{HOME}.qkv_proj", ATTENTION["qkv_proj"], sizes, config), tensors
