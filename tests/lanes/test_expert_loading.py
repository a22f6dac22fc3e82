"""What the loaders of vLLM's models hand over reaches the stream as one tensor of one expert, or is refused."""

from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import ConfigError

EXPERTS, HIDDEN, WIDTH = 4, 8, 6


class Stream:
    """Keeps what it is given; expert 3 belongs to another rank."""

    one_expert_each = False

    def __init__(self) -> None:
        self.taken: dict[tuple[str, str, int], Tensor] = {}

    def take(self, shard: str, part: str, expert: int, tensor: Tensor) -> bool:
        if expert < 3:
            self.taken[shard, part, expert] = tensor
        return expert < 3


@pytest.fixture
def layer() -> Any:
    return SimpleNamespace(
        layer_name="layer", mega_moe_experts=Stream(), global_num_experts=EXPERTS, hidden_size=HIDDEN
    )


def parameter(layer: Any, part: str = "weight") -> Any:
    from vllm_megamoe.lanes.expert_loading import Numberless, take

    return Numberless(MethodType(take, layer), part)


def test_one_expert_by_keywords_and_whether_it_is_this_ranks(layer: Any) -> None:
    param, tensor = parameter(layer, "weight_scale"), torch.rand(WIDTH, 1)
    given = {"param": param, "loaded_weight": tensor, "weight_name": "layer.w13_weight_scale", "shard_id": "w3"}
    assert param.weight_loader(**given, expert_id=2, return_success=True) is True
    assert param.weight_loader(**given, expert_id=3, return_success=True) is False
    assert param.weight_loader(**given, expert_id=1) is None
    assert {key: t is tensor for key, t in layer.mega_moe_experts.taken.items()} == {
        ("w3", "weight_scale", 2): True,
        ("w3", "weight_scale", 1): True,
    }


def test_three_dimensions_are_consecutive_experts(layer: Any) -> None:
    """Llama 4 gives a rank's experts at once, with the first one's id."""
    param, tensor = parameter(layer), torch.rand(2, WIDTH, HIDDEN)
    param.weight_loader(param, tensor, "experts.w13_weight", shard_id="w1", expert_id=1)
    assert [layer.mega_moe_experts.taken["w1", "weight", e].equal(tensor[e - 1]) for e in (1, 2)] == [True, True]


def test_three_dimensions_of_an_operand_are_one_experts(layer: Any) -> None:
    """Scales of MX operands are [2I, H/64, 2], whatever the number of experts is."""
    layer.mega_moe_experts.one_expert_each = True
    param, tensor = parameter(layer, "operand_sf"), torch.rand(2, 4, 2)
    param.weight_loader(param, tensor, "experts.w13_operand_sf", shard_id="w1", expert_id=1)
    assert layer.mega_moe_experts.taken == {("w1", "operand_sf", 1): tensor}


def test_dbrx_lays_all_experts_below_each_other(layer: Any) -> None:
    """Its three matrices are [experts * width, hidden]; the one of the second GEMM is transposed."""
    param = parameter(layer)
    rows = torch.rand(3, EXPERTS * WIDTH, HIDDEN)
    for tensor, name in zip(rows, ("w1", "v1", "w2"), strict=True):
        param.weight_loader(param, tensor, f"ffn.experts.mlp.{name}", "ffn.experts.w13_weight")
    taken = layer.mega_moe_experts.taken
    own = slice(2 * WIDTH, 3 * WIDTH)
    assert taken["w1", "weight", 2].equal(rows[0, own])
    assert taken["w3", "weight", 2].equal(rows[1, own])
    assert taken["w2", "weight", 2].equal(rows[2, own].t())
    assert ("w1", "weight", 3) not in taken


def test_another_way_of_handing_over_is_refused(layer: Any) -> None:
    param = parameter(layer)
    words = r"^layer: the model loads w13_weight \[6, 8\] as 'gpt_oss_w13' of expert 0; expected w1, w2 or w3"
    with pytest.raises(ConfigError, match=words):
        param.weight_loader(param, torch.rand(WIDTH, HIDDEN), "w13_weight", "gpt_oss_w13", 0)


def test_a_loader_cannot_be_exchanged_and_holds_no_numbers(layer: Any) -> None:
    """vLLM's reload puts its own loader on every parameter, and counts the numbers of those that it waits for."""
    param = parameter(layer)
    param.weight_loader = print
    assert param.weight_loader.__self__ is layer
    assert param.numel() == 0


def test_vllms_copy_of_a_parameter_loads_too_and_does_not_hold_the_layer(layer: Any) -> None:
    """Its reload keeps copies on the meta device, cut from the layer, and puts them in place."""
    from vllm.model_executor.model_loader.reload.meta import to_meta_tensor
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs, sanitize_layer_refs

    kept: Any = sanitize_layer_refs(to_meta_tensor(parameter(layer)), layer)
    assert kept.weight_loader.__self__ is not layer
    restored: Any = restore_layer_refs(kept, layer)
    restored.weight_loader(restored, torch.rand(WIDTH, HIDDEN), "w13_weight", "w1", 0)
    assert ("w1", "weight", 0) in layer.mega_moe_experts.taken
