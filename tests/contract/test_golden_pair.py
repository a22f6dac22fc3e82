"""What vllm-ascend's own MegaMoE path hands to the operator and what ours does, for one checkpoint of each format.

Weights, scales, biases, rows, ids, router weights and mask are equal element for element. What differs stands in
INTENDED, with its reason; nothing else may.
"""

from typing import Any

import pytest
import torch
from contract.support.cases import EXPERTS, HIDDEN, RANKS
from contract.support.values import digest
from contract.support.weights import projection
from torch import Tensor

CREATE, CALL = "get_symm_buffer_for_mega_moe", "mega_moe"
FORMATS = {"bf16": "a3", "w8a8": "a3", "w4a8": "a3", "mxfp8": "950", "w4a8 mxfp": "950", "mxfp4": "950"}
LEFT_OUT: Any = object()

DEFAULTS = {
    CREATE: {"combine_quant_mode": 0, "comm_alg": "", "topk_weights_type": 0},
    CALL: {"activation": "swiglu", "activation_params": None}
    | {f"shared_l{n}_{part}": None for n in (1, 2) for part in ("weights", "weights_sf", "bias")},
}
"""Said by ours although they are the defaults; theirs leaves them out."""

INTENDED = {
    "group": "on 950 a communicator can have one buffer: ours has a group of its own (op csrc, comm_context)",
    "intermediate_hidden": "theirs says 2I, ours nothing; the operator does not read it (op wrapper mega_moe.py)",
    "max_recv_token_num": "theirs bounds it by mega_moe_max_tokens, ours leaves it to the operator: all that can come",
    "dispatch_quant_out_dtype": "24 and 292 are E4M3, as torch and as ACL + 256 number it (csrc GetAclDataType)",
    "sym_buffer": "the buffer shows the same three",
    "weight1_type": "theirs says E4M3 of float8 tensors, whose dtype says it as well",
    "weight2_type": "the same",
    "topk_ids": "950 has no mask: ours says with -1 that a padded row goes to no expert, theirs sends it to one",
    "l1_weights_sf": "W8A8: vllm-ascend keeps float32 factors of a checkpoint as bf16, ours as they are",
    "l2_weights_sf": "the same",
}
"""Argument -> why the two paths differ in it."""

EXPECTED = {
    "bf16": {"group", "intermediate_hidden", "max_recv_token_num", "sym_buffer"},
    "w8a8": {"group", "intermediate_hidden", "max_recv_token_num", "sym_buffer", "l1_weights_sf", "l2_weights_sf"},
    "w4a8": {"group", "intermediate_hidden", "max_recv_token_num", "sym_buffer"},
    "mxfp8": set(INTENDED) - {"l1_weights_sf", "l2_weights_sf"},
    "w4a8 mxfp": set(INTENDED) - {"l1_weights_sf", "l2_weights_sf", "weight1_type", "weight2_type"},
    "mxfp4": {"group", "intermediate_hidden", "max_recv_token_num", "sym_buffer", "topk_ids"},
}


@pytest.fixture(params=FORMATS)
def answers(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Both ranks' events and rows of one format, by path."""
    pair = request.getfixturevalue("a3_pair" if FORMATS[request.param] == "a3" else "a950_pair")
    return [answer[request.param] | {"name": request.param} for answer in pair["golden_pair"]]


def differences(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> set[str]:
    """Arguments that differ, leaving out defaults that one of the two does not say."""
    found: set[str] = set()
    for mine, other in zip(theirs, ours, strict=True):
        assert mine["call"] == other["call"]
        for name in mine["given"].keys() | other["given"].keys():
            default = DEFAULTS[mine["call"]].get(name, LEFT_OUT)
            first, second = (each["given"].get(name, default) for each in (mine, other))
            if first is LEFT_OUT or second is LEFT_OUT or first != second:
                found.add(name)
    return found


def test_both_paths_say_the_same_but_for_what_is_intended(answers: list[dict[str, Any]]) -> None:
    name = answers[0]["name"]
    found = set().union(*(differences(a["theirs"]["events"], a["ours"]["events"]) for a in answers))
    assert found == EXPECTED[name]
    assert found <= INTENDED.keys()


def test_the_differences_are_those_that_are_meant(answers: list[dict[str, Any]]) -> None:
    for rank, answer in enumerate(answers):
        (made, called), (own, run) = ([e["given"] for e in answer[path]["events"]] for path in ("theirs", "ours"))
        assert (made["intermediate_hidden"], own["intermediate_hidden"]) == (2048, 0)
        assert (made["max_recv_token_num"], own["max_recv_token_num"]) == (2048, 0)
        assert made["group"]["ranks"] == own["group"]["ranks"] == list(range(RANKS))
        if answer["name"] == "w8a8":
            for number, parts in ((1, ("gate", "up")), (2, ("down",))):
                exact, rounded = factors(rank, parts), factors(rank, parts, torch.bfloat16)
                assert [each["digest"] for each in run[f"l{number}_weights_sf"]] == exact
                assert [each["digest"] for each in called[f"l{number}_weights_sf"]] == rounded
        if FORMATS[answer["name"]] == "950" and rank == 1:
            assert run["topk_ids"]["values"][:2] == called["topk_ids"]["values"][:2]
            assert run["topk_ids"]["values"][2] == [-1, -1]


def factors(rank: int, parts: tuple[str, ...], dtype: torch.dtype = torch.float32) -> list[str]:
    """Digests of each own expert's channel factors, as fp32 bits in 64-bit words, after a rounding to `dtype`."""

    def of(expert: int) -> Tensor:
        sizes = {"down": (HIDDEN, 1024)}
        names = [(f"experts.{expert}.{part}_proj", *sizes.get(part, (1024, HIDDEN))) for part in parts]
        scales = [projection("W8A8_DYNAMIC", *each).stored["weight_scale"].reshape(-1) for each in names]
        return torch.cat(scales).to(dtype).float().view(torch.int32).long()

    own = EXPERTS // RANKS
    return [digest(of(expert)) for expert in range(rank * own, (rank + 1) * own)]


def test_rows_are_equal(answers: list[dict[str, Any]]) -> None:
    """Where the operands are: all but W8A8, whose factors differ by 2^-9 at most, twice on the way."""
    for answer in answers:
        theirs, ours = (answer[path]["rows"].double() for path in ("theirs", "ours"))
        if answer["name"] == "w8a8":
            error = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
            assert 0 < error.max() < 2**-6
        else:
            assert ours.equal(theirs)
