"""What vllm-ascend's own MegaMoE path (`enable_fused_mc2=2`) hands to the operator, TP=2 EP=2, for each weight format.

Expected are the checkpoint's tensors in the layout that the operator's documents ask for, worked out here, and the
codes of aclDataType. A lane of ours will be held against the same calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from contract.support.values import digest, rows_for, tensor_for
from torch import Tensor

HIDDEN = INTERMEDIATE = 1024
EXPERTS, TOPK, RANKS = 8, 2, 2
TOKENS, PADDED = 5, 6
MAX_BATCHED_TOKENS = 1024
HOME = "experts.routed_experts."
ND, NZ, NZ_C0_16 = 2, 29, 50
INT8, FP8_E4M3, INT4, FP4_E2M1 = 258, 24, 285, 296
"""aclDataType where torch has no dtype of that name, else torch_npu's number of the dtype (256 + 2 is int8)."""


def swapped(weight: Tensor) -> Tensor:
    """[N, K] of the checkpoint -> [K, N]."""
    return weight.t().contiguous()


def same(weight: Tensor) -> Tensor:
    return weight


def pairs(scale: Tensor) -> Tensor:
    """E8M0 bytes [N, K/32] -> [N, K/64, 2]."""
    return scale.reshape(len(scale), -1, 2).view(torch.float8_e8m0fnu)


def as_uint64(scale: Tensor) -> Tensor:
    """A float scale a channel -> its fp32 bits in the low half of 64, which is how the fixpipe takes it."""
    return (scale.float().reshape(-1).view(torch.int32).long() & 0xFFFFFFFF).contiguous()


def summed(bias: Tensor) -> Tensor:
    """[N, parts] -> [N]: msModelSlim writes the correction of an output in parts."""
    return bias.t().contiguous().sum(dim=0)


@dataclass(frozen=True)
class Expected:
    """One format: creation modes, type codes, and how a checkpoint's tensors become lists."""

    mode: int
    out_type: int | None
    weight_type: int | None
    weights: Callable[[Tensor], Tensor]
    storage: tuple[int, int] = (ND, ND)
    scales: Callable[[Tensor], Tensor] | None = None
    biases: Callable[[Tensor], Tensor] | None = None
    has_mask: bool = True


EXPECTED = {
    "BF16": Expected(0, None, None, swapped),
    "W8A8_DYNAMIC": Expected(2, INT8, INT8, swapped, (NZ, NZ), as_uint64),
    "W4A8_DYNAMIC": Expected(2, INT8, INT4, swapped, (NZ, NZ), as_uint64, summed),
    "W8A8_MXFP8": Expected(4, FP8_E4M3, FP8_E4M3, same, (ND, ND), pairs, has_mask=False),
    # Two FP4 values in a byte: 16 bytes a block at this level are the 32 values that the operator calls C0_32. It wants
    # that of both weights of A8W4-FP and of w2 of A4W4-FP (operator_readme.txt, table of formats).
    "W4A8_MXFP": Expected(4, FP8_E4M3, FP4_E2M1, same, (NZ_C0_16, NZ_C0_16), pairs, has_mask=False),
    "W4A4_MXFP4": Expected(4, FP4_E2M1, FP4_E2M1, same, (NZ, NZ_C0_16), pairs, has_mask=False),
}
ON_950 = ("W8A8_MXFP8", "W4A8_MXFP", "W4A4_MXFP4")
FORMATS = list(EXPECTED)


@pytest.fixture
def answers(request: pytest.FixtureRequest, weights: str) -> list[dict[str, Any]]:
    """What both ranks say of one format."""
    pair = request.getfixturevalue("a950_pair" if weights in ON_950 else "a3_pair")
    found = [answer[weights] for answer in pair["golden"]]
    for answer in found:
        assert "stopped" not in answer, answer["stopped"]
    return found


def checkpoint(answer: dict[str, Any], name: str, rank: int) -> list[Tensor]:
    """A parameter's tensors of this rank's experts, as the rank's loader had them."""
    dtype, shape = answer["parameters"][name]
    whole = tensor_for(HOME + name, (shape[0] * RANKS, *shape[1:]), getattr(torch, dtype))
    return list(whole[rank * shape[0] : (rank + 1) * shape[0]])


def described(tensors: list[Tensor], storage: int) -> list[tuple[str, list[int], int, str]]:
    return [(str(t.dtype).removeprefix("torch."), list(t.shape), storage, digest(t)) for t in tensors]


def seen(given: list[dict[str, Any]] | None) -> list[tuple[str, list[int], int, str]] | None:
    if given is None:
        return None
    assert all(each["contiguous"] for each in given)
    return [(each["dtype"], each["shape"], each["format"], each["digest"]) for each in given]


@pytest.mark.parametrize("weights", FORMATS)
def test_creates_one_buffer(weights: str, answers: list[dict[str, Any]]) -> None:
    """On the first step, on both ranks alike; the second step finds it."""
    per_rank = MAX_BATCHED_TOKENS // RANKS
    for answer in answers:
        create, *calls = answer["events"]
        assert [event["call"] for event in (create, *calls)] == ["get_symm_buffer_for_mega_moe", "mega_moe", "mega_moe"]
        group = create["given"].pop("group")
        assert group["ranks"] == list(range(RANKS))
        assert create["given"] == {
            "num_experts": EXPERTS,
            "num_max_tokens_per_rank": per_rank,
            "num_topk": TOPK,
            "hidden": HIDDEN,
            "intermediate_hidden": 2 * INTERMEDIATE,
            "max_recv_token_num": per_rank * RANKS * min(TOPK, EXPERTS // RANKS),
            "dispatch_quant_mode": EXPECTED[weights].mode,
            "dispatch_quant_out_dtype": EXPECTED[weights].out_type,
        }
        create["given"]["group"] = group


@pytest.mark.parametrize("weights", FORMATS)
def test_hands_over_the_weights(weights: str, answers: list[dict[str, Any]]) -> None:
    expected = EXPECTED[weights]
    for rank, answer in enumerate(answers):
        for event in answer["events"][1:]:
            given = event["given"]
            for number, name in ((1, "w13"), (2, "w2")):
                loaded = [expected.weights(each) for each in checkpoint(answer, f"{name}_weight", rank)]
                assert seen(given[f"l{number}_weights"]) == described(loaded, expected.storage[number - 1])
                assert given[f"weight{number}_type"] == expected.weight_type
                for key, parameter, convert in (
                    (f"l{number}_weights_sf", f"{name}_weight_scale", expected.scales),
                    (f"l{number}_bias", f"{name}_scale_bias", expected.biases),
                ):
                    if convert is None:
                        assert given[key] is None
                    else:
                        parts = [convert(each) for each in checkpoint(answer, parameter, rank)]
                        assert seen(given[key]) == described(parts, ND)


@pytest.mark.parametrize("weights", FORMATS)
def test_hands_over_own_rows_padded_to_tp(weights: str, answers: list[dict[str, Any]]) -> None:
    """5 tokens over 2 ranks: 3 rows each, the last one of rank 1 zero and masked; on 950 there is no mask."""
    rows = torch.zeros(PADDED, HIDDEN, dtype=torch.bfloat16)
    rows[:TOKENS] = rows_for("golden", TOKENS, HIDDEN)
    gate = tensor_for("gate.weight", (EXPERTS, HIDDEN), torch.bfloat16)
    for rank, answer in enumerate(answers):
        given = answer["events"][1]["given"]
        mine = slice(rank * PADDED // RANKS, (rank + 1) * PADDED // RANKS)
        assert seen([given["x"]]) == described([rows[mine]], ND)
        real = min(TOKENS, mine.stop) - mine.start
        mask = given["x_active_mask"]
        if EXPECTED[weights].has_mask:
            assert (mask["dtype"], mask["values"]) == ("int8", [1] * real + [0] * (3 - real))
        else:
            assert mask is None
        assert (given["topk_ids"]["dtype"], given["topk_weights"]["dtype"]) == ("int32", "float32")
        scores = (rows[mine].double() @ gate.double().t()).softmax(-1).topk(TOPK)
        assert given["topk_ids"]["values"][:real] == scores.indices[:real].tolist()
        normal = scores.values / scores.values.sum(-1, keepdim=True)
        # bf16 logits of a size of 2 or so, then bf16 weights: both keep 8 bits.
        assert torch.tensor(given["topk_weights"]["values"])[:real].sub(normal[:real]).abs().max() < 2**-6


@pytest.mark.parametrize("weights", FORMATS)
def test_names_no_other_argument(weights: str, answers: list[dict[str, Any]]) -> None:
    """SwiGLU without a limit goes without an activation's name; the buffer carries the modes that it was made with."""
    for answer in answers:
        for event in answer["events"][1:]:
            given = event["given"]
            assert given["activation_clamp"] is None
            assert given.keys().isdisjoint({"activation", "activation_params", "shared_l1_weights"})
            modes = given["sym_buffer"]["modes"]
            created = answer["events"][0]["given"]
            assert modes == {key: created[key] for key in modes}


@pytest.mark.parametrize("weights", FORMATS)
def test_ranks_return_the_same_rows(weights: str, answers: list[dict[str, Any]]) -> None:
    first, second = (answer["rows"] for answer in answers)
    assert first.shape == (TOKENS, HIDDEN)
    assert torch.equal(first, second)
    assert bool(first.isfinite().all())


@pytest.mark.parametrize("weights", ["BF16"])
def test_bf16_rows_are_the_dense_layers(weights: str, answers: list[dict[str, Any]]) -> None:
    """Within 1 % of the largest value: the operator rounds to bf16 between its GEMMs and for each expert's row."""
    x = rows_for("golden", TOKENS, HIDDEN).double()
    gate = tensor_for("gate.weight", (EXPERTS, HIDDEN), torch.bfloat16).double()
    w13, w2 = (
        torch.cat([torch.stack(checkpoint(answer, f"{name}_weight", rank)) for rank, answer in enumerate(answers)])
        for name in ("w13", "w2")
    )
    scores = (x @ gate.t()).softmax(-1).topk(TOPK)
    share = scores.values / scores.values.sum(-1, keepdim=True)
    dense = torch.zeros_like(x)
    for token in range(TOKENS):
        for expert, part in zip(scores.indices[token].tolist(), share[token], strict=True):
            gate_rows, up_rows = (w13[expert].double() @ x[token]).chunk(2)
            dense[token] += part * (w2[expert].double() @ (torch.nn.functional.silu(gate_rows) * up_rows))
    error = (answers[0]["rows"].double() - dense).abs().max()
    assert error < 0.01 * dense.abs().max()
