"""Writers of layers whose experts lie in one tensor: they stack what a scheme wrote expert by expert.

Layouts: facts/checkpoints.md 3.1, 3.6, 3.9.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vllm_megamoe.testing.formats.scheme import Written

Triple = tuple[Written, Written, Written]
LayerWriter = Callable[[Sequence[Triple]], dict[str, Tensor]]
"""gate, up and down of each expert -> tensors below the block's prefix."""


def _weights(experts: Sequence[Triple], projection: int) -> Tensor:
    return torch.stack([expert[projection].tensors["weight"] for expert in experts])


def halves(experts: Sequence[Triple]) -> dict[str, Tensor]:
    """gate_up_proj [E, 2I, H], gate first; down_proj [E, H, I]."""
    gate_up = torch.cat([_weights(experts, 0), _weights(experts, 1)], dim=1)
    return {"experts.gate_up_proj": gate_up, "experts.down_proj": _weights(experts, 2)}


def transposed_halves(experts: Sequence[Triple]) -> dict[str, Tensor]:
    """gate_up_proj [E, H, 2I], gate first; down_proj [E, I, H]."""
    return {name: tensor.transpose(1, 2).contiguous() for name, tensor in halves(experts).items()}


def biases(expert: Triple, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """bfloat16 [I], [I], [H]: distinct per expert and channel as far as bfloat16 goes."""
    made = []
    for projection, written in enumerate(expert):
        n = len(written.values)
        made.append((0x3C00 + 128 * projection + 512 * (number % 4) + torch.arange(n) % 128).to(torch.int16))
    gate, up, down = (bits.view(torch.bfloat16) for bits in made)
    return gate, up, down


def with_biases(experts: Sequence[Triple]) -> list[Triple]:
    """The same experts, their expected biases set."""
    result: list[Triple] = []
    for number, expert in enumerate(experts):
        gate, up, down = (
            Written(w.tensors, w.values, w.kind, w.codes, w.scale, bias.double().numpy())
            for w, bias in zip(expert, biases(expert, number), strict=True)
        )
        result.append((gate, up, down))
    return result


def _bias_tensors(experts: Sequence[Triple]) -> dict[str, Tensor]:
    three = [biases(expert, number) for number, expert in enumerate(experts)]
    gate_up = torch.stack([torch.stack([gate, up], dim=1).flatten() for gate, up, _ in three])
    return {"experts.gate_up_proj_bias": gate_up, "experts.down_proj_bias": torch.stack([down for *_, down in three])}


def interleaved(experts: Sequence[Triple]) -> dict[str, Tensor]:
    """gpt-oss in BF16: gate_up_proj [E, H, 2I], gate in even columns; down_proj [E, I, H]; biases."""
    gate_up = torch.stack([_weights(experts, 0), _weights(experts, 1)], dim=2).flatten(1, 2)
    down = _weights(experts, 2).transpose(1, 2).contiguous()
    tensors = {"experts.gate_up_proj": gate_up.transpose(1, 2).contiguous(), "experts.down_proj": down}
    return tensors | _bias_tensors(experts)


def blocks(experts: Sequence[Triple]) -> dict[str, Tensor]:
    """gpt-oss in MXFP4: rows of gate and up alternate; 16 bytes a block."""
    tensors: dict[str, Tensor] = {}
    for part, name, width in (("weight", "blocks", 16), ("weight_scale", "scales", 0)):
        gate, up, down = (torch.stack([e[p].tensors[part] for e in experts]) for p in range(3))
        gate_up = torch.stack([gate, up], dim=2).flatten(1, 2)
        if width:
            gate_up, down = gate_up.unflatten(2, (-1, width)), down.unflatten(2, (-1, width))
        tensors |= {f"experts.gate_up_proj_{name}": gate_up, f"experts.down_proj_{name}": down}
    return tensors | _bias_tensors(experts)


def per_projection(experts: Sequence[Triple]) -> dict[str, Tensor]:
    """Step-3.5: every tensor of a projection stacked over the experts."""
    tensors = {}
    for projection, name in enumerate(("gate_proj", "up_proj", "down_proj")):
        for suffix in experts[0][projection].tensors:
            tensors[f"{name}.{suffix}"] = torch.stack([expert[projection].tensors[suffix] for expert in experts])
    return tensors
