"""A rank's own reason comes first, reaches the other ranks at once, and is the product's where a product is set."""

from typing import Any

import pytest
from ops import refusals
from ops.refusals import BAD, WRONG

from vllm_megamoe.testing.ranks import World

# far below the hour that the ranks would wait for each other: whoever is not told ends the test
LIMIT_S = 60.0


@pytest.mark.parametrize("place", range(len(WRONG)), ids=[words for words, _ in WRONG])
def test_every_refusal_reaches_the_peers(place: int, two_ranks: World) -> None:
    words = WRONG[place][0]
    for rank, ((kind, text), went_on) in enumerate(two_ranks.run(refusals.first_call, [(place,)] * 2, LIMIT_S)):
        assert kind == ("OperatorError" if rank == BAD else "PeerError"), text
        assert words in text
        assert "; expected " in text
        assert rank == BAD or f"rank {BAD} rejected its call: OperatorError" in text
        assert went_on


def test_the_own_reason_comes_first_though_the_peer_has_left(two_lost_ranks: World) -> None:
    _, (kind, text, notes) = two_lost_ranks.run(refusals.after_the_peer_has_left, [(), ()], LIMIT_S)
    assert kind == "OperatorError"
    assert text.startswith("topk_ids[0]=")
    assert "connection" not in text
    assert len(notes) == 1
    assert "rank 0 could not be told" in notes[0]
    assert "Connection closed by peer" in notes[0]


@pytest.mark.parametrize("profile", ["a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"])
def test_the_window_is_the_same_on_all_ranks(profile: str, two_ranks: World) -> None:
    # torch_api.txt:380 and operator_readme.txt: "The communicator buffer size must be consistent across all devices"
    here, there = 2 * 200 * 2**20, 2 * 300 * 2**20  # HCCL_BUFFSIZE counts MB of one direction
    found = two_ranks.run(refusals.windows, [(profile, ["200", "300"])] * 2, LIMIT_S)
    for rank, (kind, text) in enumerate(found):
        mine, theirs = (here, there) if rank == 0 else (there, here)
        assert kind == "PeerError"
        assert f"ccl_buffer_size is {mine} here and {theirs} on rank {1 - rank}" in text
        assert "Set HCCL_BUFFSIZE to the same number of MB on all ranks" in text
    assert two_ranks.run(refusals.windows, [(profile, ["300", "300"])] * 2, LIMIT_S) == [None, None]


def test_without_a_product_there_is_no_window(two_ranks: World) -> None:
    assert two_ranks.run(refusals.windows, [("none", ["200", "300"])] * 2, LIMIT_S) == [None, None]


def test_the_topology_is_the_same_on_all_ranks(two_ranks: World) -> None:
    first, second = two_ranks.run(refusals.topologies, [(), ()], LIMIT_S)
    assert "topology is mte here and urma on rank 1" in first[1]
    assert "topology is urma here and mte on rank 0" in second[1]


E4M3 = {"dispatch_quant_mode": 4, "dispatch_quant_out_dtype": 292}
INT8 = {"dispatch_quant_mode": 2, "dispatch_quant_out_dtype": 258}
DISPATCH = "(dispatch_quant_mode, dispatch_quant_out_dtype)"
SITUGLU = {"activation": "situglu", "activation_clamp": 1.0}
PRODUCT_FIRST: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    # modes and use cases that a product lacks (torch_api.txt:443-452 and 460; operator_readme.txt:550-556)
    *(
        (
            name,
            "a16w16",
            E4M3,
            {},
            f"{DISPATCH}=(4, FLOAT8_E4M3FN); expected one of (0",
        )
        for name in ("a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2")
    ),
    (
        "950@9.2",
        "a16w16",
        INT8,
        {},
        f"{DISPATCH}=(2, INT8); expected one of (0, FLOAT4",
    ),
    (
        "950@9.2",
        "a16w16",
        {},
        {},
        f"{DISPATCH}=(0, None); expected one of (0, FLOAT4",
    ),
    (
        "a3@9.2",
        "a8w8-fp",
        {},
        {},
        f"{DISPATCH}=(4, FLOAT8_E4M3FN); expected one of (0",
    ),
    # activations and their numbers
    ("a3@9.1", "a16w16", {}, {"activation": "relu"}, "activation='relu'; expected swiglu with profile a3@9.1"),
    ("a3@9.1", "a16w16", {}, {"activation_params": {"gamma": 1.0}}, "activation_params=given; expected nothing: 9.1.0"),
    (
        "a3@9.2",
        "a16w16",
        {},
        {"activation": "situglu", "activation_clamp": 1.0},
        "activation_clamp=1.0; expected None with",
    ),
    (
        "a3@9.1",
        "a16w16",
        {},
        {"activation_clamp": -1.0},
        "activation_clamp=-1.0; expected at least 0",
    ),
]


@pytest.mark.parametrize(("profile", "kind", "buffer", "call", "words"), PRODUCT_FIRST, ids=lambda v: str(v)[:30])
def test_the_products_rule_speaks_first(
    profile: str, kind: str, buffer: dict[str, Any], call: dict[str, Any], words: str, two_ranks: World
) -> None:
    for found in two_ranks.run(refusals.on_a_product, [(profile, kind, buffer, call)] * 2, LIMIT_S):
        assert found is not None
        assert found[0] == "OperatorError"
        assert found[1].startswith(words)
        assert f"with profile {profile} (" in found[1]


@pytest.mark.parametrize(
    ("profile", "kind", "spelling", "remedy"),
    [
        ("950@9.2", "a8w4-fp", "float4_e2m1fn_x2", "296 for packed FP4"),
        ("a3@9.2", "a16w16", "bfloat16", "None for BF16"),
    ],
)
def test_output_types_that_the_wrapper_has_no_torch_name_for(
    profile: str, kind: str, spelling: str, remedy: str, two_ranks: World
) -> None:
    """The wrapper's table has int8, e5m2 and e4m3 (operator facts, section 1.5); FP4 is a number, BF16 is None."""
    import torch

    changes = {"dispatch_quant_out_dtype": getattr(torch, spelling)}
    for found in two_ranks.run(refusals.on_a_product, [(profile, kind, changes, {})] * 2, LIMIT_S):
        assert found is not None
        assert found[1].startswith(f"creation: dispatch_quant_out_dtype=torch.{spelling}; expected torch.int8, ")
        assert remedy in found[1]


@pytest.mark.parametrize("profile", ["a3@9.1", "a2@9.2"])
def test_a_buffer_whose_owner_is_gone_is_in_nobodys_way(profile: str, two_ranks: World) -> None:
    for held, gone, destroyed in two_ranks.run(refusals.kept_by_a_failure, [(profile,)] * 2, LIMIT_S):
        assert "dispatch_quant_mode=2; expected 0, as the first buffer of the communicator has it" in held
        assert (gone, destroyed) == ("", "")
