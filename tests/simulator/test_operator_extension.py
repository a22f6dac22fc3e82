"""The extension's positional arguments, in the order of each revision's schema (op wrapper mega_moe.py)."""

from typing import Any

import pytest
import torch

from vllm_megamoe.simulator.device import device
from vllm_megamoe.simulator.install import extensions
from vllm_megamoe.simulator.install.extensions import OperatorExtension

_RELEASE = (
    "context x topk_ids topk_weights weight1 weight2 moe_expert_num ep_world_size ccl_buffer_size weight_scales1 "
    "weight_scales2 bias1 bias2 x_active_mask max_recv_token_num dispatch_quant_mode combine_quant_mode comm_alg "
    "num_max_tokens_per_rank activation activation_clamp dispatch_quant_out_dtype weight1_type weight2_type"
)
_HEAD = (
    "context x topk_ids topk_weights weight1 weight2 moe_expert_num ep_world_size ccl_buffer_size weight_scales1 "
    "weight_scales2 bias1 bias2 x_active_mask shared_weight1 shared_weight2 shared_weight_scales1 "
    "shared_weight_scales2 shared_bias1 shared_bias2 max_recv_token_num dispatch_quant_mode combine_quant_mode "
    "comm_alg num_max_tokens_per_rank activation activation_params dispatch_quant_out_dtype weight1_type "
    "weight2_type topo_type rank_num_per_server topk_weights_type"
)
RELEASE, HEAD = _RELEASE.split(), _HEAD.split()
LISTS = {"weight1", "weight2"} | {
    name for name in HEAD if name.startswith(("weight_scales", "bias", "shared_")) and "_type" not in name
}
FLT_MAX = 3.4028234663852886e38
"""What the newer wrapper sends for no clamp."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that reach the kernel."""
    calls: list[Any] = []
    monkeypatch.setattr(extensions, "npu_mega_moe", lambda profile, arguments: calls.append(arguments))
    return calls


def values(names: list[str], **given: Any) -> dict[str, Any]:
    """A value of its own for every argument."""
    made = {name: [torch.tensor(n)] if name in LISTS else n for n, name in enumerate(names)}
    return made | {"activation": "swiglu"} | given


@pytest.mark.parametrize(("name", "names"), [("a3@9.1", RELEASE), ("950@9.2", HEAD)])
def test_every_argument_arrives_under_its_name(name: str, names: list[str], seen: list[Any]) -> None:
    given = values(names, activation_params=[7.0]) if names is HEAD else values(names)
    OperatorExtension(device(name)).npu_mega_moe(*(given[key] for key in names))
    for key in set(names) - {"activation_params", "topo_type", "rank_num_per_server"}:
        assert getattr(seen[0], key) == given[key], key


@pytest.mark.parametrize(
    ("activation", "sent", "clamp", "params"),
    [
        ("swiglu", [FLT_MAX], None, {}),
        ("swiglustep", [0.5], 0.5, {}),
        ("swigluoai", [7.0, 1.5, 0.25], 7.0, {"alpha": 1.5, "beta": 0.25}),
        ("situglu", [2.0], None, {"beta": 2.0}),
        ("situglu", [2.0, 3.0], None, {"beta": 2.0, "linear_beta": 3.0}),
    ],
)
def test_the_activations_list(
    activation: str, sent: list[float], clamp: float | None, params: dict[str, float], seen: list[Any]
) -> None:
    given = values(HEAD, activation=activation, activation_params=sent)
    OperatorExtension(device("a3@9.2")).npu_mega_moe(*(given[key] for key in HEAD))
    assert (seen[0].activation_clamp, seen[0].activation_params) == (clamp, params)


def test_another_number_of_arguments_is_another_revision(seen: list[Any]) -> None:
    given = values(RELEASE)
    with pytest.raises(ValueError, match="zip"):
        OperatorExtension(device("a3@9.2")).npu_mega_moe(*(given[key] for key in RELEASE))
    assert seen == []
