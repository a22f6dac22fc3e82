"""The look-alikes take what the wrapper of each revision takes: names, order, kinds and defaults (its mega_moe.py)."""

import inspect
from typing import Any

import pytest
import torch

from vllm_megamoe.profiles.profile import PROFILE_NAMES
from vllm_megamoe.simulator import device
from vllm_megamoe.testing.ranks import Failure, World

RELEASE = {
    "get_symm_buffer_for_mega_moe": (
        "group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, *, max_recv_token_num=0, "
        "dispatch_quant_mode=0, dispatch_quant_out_dtype=None, combine_quant_mode=0, comm_alg=''"
    ),
    "mega_moe": (
        "x, topk_ids, topk_weights, l1_weights, l2_weights, sym_buffer, *, l1_weights_sf=None, l2_weights_sf=None, "
        "l1_bias=None, l2_bias=None, x_active_mask=None, activation='swiglu', activation_clamp=None, "
        "weight1_type=None, weight2_type=None"
    ),
}
"""CANN 9.1.0: torch_api.txt, and the branch 9.1.0 of the operator's repository."""

HEAD = {
    "get_symm_buffer_for_mega_moe": RELEASE["get_symm_buffer_for_mega_moe"] + ", topk_weights_type=0",
    "mega_moe": (
        "x, topk_ids, topk_weights, l1_weights, l2_weights, sym_buffer, *, l1_weights_sf=None, l2_weights_sf=None, "
        "l1_bias=None, l2_bias=None, x_active_mask=None, activation='swiglu', activation_clamp=None, "
        "activation_params=None, weight1_type=None, weight2_type=None, shared_l1_weights=None, shared_l2_weights=None, "
        "shared_l1_weights_sf=None, shared_l2_weights_sf=None, shared_l1_bias=None, shared_l2_bias=None"
    ),
}
"""The operator's repository in 2026-08."""


def ops_of(name: str) -> Any:
    return device(name).modules["cann_ops_transformer.ops"]


def written(function: Any) -> str:
    """A signature without its annotations."""
    found = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(inspect.Signature(plain))[1:-1]


@pytest.mark.parametrize("function", ["get_symm_buffer_for_mega_moe", "mega_moe"])
@pytest.mark.parametrize("name", [name for name in PROFILE_NAMES if name != "none"])
def test_signatures(name: str, function: str) -> None:
    revision = RELEASE if name.endswith("@9.1") else HEAD
    assert written(getattr(ops_of(name), function)) == revision[function]


@pytest.mark.parametrize("unknown", ["topk_weights_type", "combine_comm_mode", "use_ccl_buffer"])
def test_an_unknown_keyword_of_creation(unknown: str) -> None:
    with pytest.raises(TypeError, match=unknown):
        ops_of("a3@9.1").get_symm_buffer_for_mega_moe(None, 8, 16, 2, 1024, 0, **{unknown: 0})


@pytest.mark.parametrize(("name", "unknown"), [("a3@9.1", "activation_params"), ("a3@9.2", "scales")])
def test_an_unknown_keyword_of_a_call(name: str, unknown: str) -> None:
    with pytest.raises(TypeError, match=unknown):
        ops_of(name).mega_moe(*[None] * 6, **{unknown: None})


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("gelu", {"activation": "gelu"}, "Unsupported activation: 'gelu'"),
        ("swigluoai", {"activation": "swigluoai", "activation_params": {"gamma": 1.0}}, "param key 'gamma'"),
    ],
)
def test_the_newer_wrapper_checks_the_activation(kind: str, given: dict[str, Any], words: str) -> None:
    del kind
    with pytest.raises(ValueError, match=words):
        ops_of("950@9.2").mega_moe(*[None] * 6, **given)


def attempt(rank: int, name: str, what: str) -> None:
    """One wrong creation or call on a legal layer."""
    from simulator.scenes import Simulated, inputs, layer

    case, scene = layer("a16w16"), Simulated(name)
    if what == "out dtype":
        scene.buffer(case, dispatch_quant_out_dtype=torch.bfloat16)
    if what == "out object":
        scene.buffer(case, dispatch_quant_out_dtype="int8")
    if what == "ep":
        scene.buffer(case, hidden=1536 + 256)
    if what == "no communicator":
        scene.ops.get_symm_buffer_for_mega_moe(torch.distributed.new_group([0, 1]), 4, 6, 2, 1024, 0)
    buffer = scene.buffer(case)
    given = inputs(case, rank)
    changes: dict[str, Any] = {
        "bare": {"l1_weights": given["l1_weights"][0]},
        "ids": {"topk_ids": given["topk_ids"].long()},
        "x": {"x": given["x"].float()},
        "fp16": {"x": given["x"].half()},
        "flat": {"topk_ids": given["topk_ids"].flatten()},
        "stack": {"l1_weights": [torch.stack(given["l1_weights"])], "l2_weights": [torch.stack(given["l2_weights"])]},
        "gelu": {"activation": "gelu"},
    }
    scene.call(buffer, given | changes[what])


REFUSALS = [
    ("out dtype", "TypeError", "Unsupported dispatch_quant_out_dtype: torch.bfloat16"),
    ("out object", "TypeError", "must be torch.dtype or int"),
    ("ep", "RuntimeError", "hidden=1792"),
    ("no communicator", "RuntimeError", "does not exist"),
    ("bare", "RuntimeError", "'List[Tensor]' for argument 'weight1'"),
    ("ids", "RuntimeError", "topk_ids must be int32"),
    ("x", "RuntimeError", "x must be bfloat16 or float16"),
    ("fp16", "RuntimeError", "x.dtype=FLOAT16"),
    ("flat", "RuntimeError", "must be 2D"),
    ("stack", "RuntimeError", "l1_weights=one 3-D stack"),
    ("gelu", "RuntimeError", "activation='gelu'"),
]


@pytest.mark.parametrize(("what", "kind", "words"), REFUSALS, ids=[what for what, *_ in REFUSALS])
def test_rejections_come_as_the_host_code_gives_them(what: str, kind: str, words: str, two_ranks: World) -> None:
    for failure in two_ranks.outcomes(attempt, [(rank, "a3@9.1", what) for rank in range(2)]):
        assert isinstance(failure, Failure)
        assert failure.kind == kind, failure.details
        assert words in failure.message
