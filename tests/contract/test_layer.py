"""One MoE layer, TP=2 EP=2, under vllm-ascend's runner with `--quantization megamoe`, on every product.

The profile is never named; it follows from the simulated machine. Expected rows come from the dense formula.
"""

from typing import Any

import pytest
import torch
from contract.support.cases import CASES, EXPERTS, HIDDEN, LIMIT, RANKS, TOPK, Case
from contract.support.dense import dense
from contract.support.values import rows_for

PRODUCTS = tuple(CASES)
EVERY = [pytest.param(product, case, id=f"{product}-{case.name}") for product in PRODUCTS for case in CASES[product]]
WITHIN = {"a16w16": 0.01, "a8w8-int": 0.06, "a8w4-int": 0.06, "a8w8-fp": 0.12, "a8w4-fp": 0.12, "a4w4-fp": 0.3}
"""Largest error as a share of the largest value, for plain rows; else the rms of a token's error as a share of the rms
of its values. A16W16 rounds to BF16. The others round rows before either GEMM: INT8 to steps of a 127th of the largest
value, which in the second GEMM's rows is some 15 times their rms, so by 15 / 127 / sqrt(12) = 0.034; E4M3 by up to
2^-4 of a value, so by 2^-4 / sqrt(3) = 0.036 and, with weights from BF16 rounded alike, 0.072 in all, more for a token
of unlike values; E2M1 by up to 2^-2, so by 0.2 in both."""
ND, NZ, NCL, NZ_C0_16 = 2, 29, 47, 50
FORMATS = {
    "a16w16": (ND, ND),
    "a8w8-int": (NZ, NZ),
    "a8w4-int": (NZ, NZ),
    "a8w8-fp": (ND, ND),
    "a8w4-fp": (NZ_C0_16, NZ_C0_16),
    "a4w4-fp": (NZ, NZ_C0_16),
}
"""Of both weights (operator_readme.txt, table of formats), by torch_npu's numbers for packed tensors."""
FP4 = {"customize_dtype": "torch.float8_e4m3fn", "input_dtype": "torch.float4_e2m1fn_x2"}
"""Without these the device makes wide blocks of packed FP4."""
QUANT_TYPES = {
    "BF16": "NONE",
    "W8A8_DYNAMIC": "W8A8",
    "W4A8_DYNAMIC": "W4A8",
    "W8A8_MXFP8": "W8A8MXFP",
    "W4A8_MXFP": "W4A8MXFP",
    "W4A4_MXFP4": "W4A4MXFP",
}
"""vllm-ascend's name of each kind of layer (quantization/quant_type.py), by which its shared experts choose kernels."""


@pytest.fixture(scope="module")
def answers() -> Any:
    """Answers of both ranks by product; each product runs when it is first asked for."""
    from contract.support.launch import RunError, run

    found: dict[str, list[dict[str, Any]] | RunError] = {}

    def of(product: str, case: Case) -> list[dict[str, Any]]:
        if product not in found:
            try:
                found[product] = run(product, ["layer"], ranks=RANKS)["layer"]
            except RunError as error:  # said for every case, and not run again for each
                found[product] = error
        ranks = found[product]
        if isinstance(ranks, RunError):
            raise ranks
        return [answer[case.name] for answer in ranks]

    return of


def calls_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["given"] for event in answer["events"] if event["call"] == "mega_moe"]


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_rows_are_the_dense_layers(product: str, case: Case, answers: Any) -> None:
    for tokens in case.tokens:
        expected = dense(case, rows_for(case.name, tokens, HIDDEN))
        error = answers(product, case)[0]["rows"][tokens].double() - expected
        if case.use_case == "a16w16":
            share = error.abs().amax(dim=1) / expected.abs().max()
        else:
            share = error.square().mean(dim=1).sqrt() / expected.square().mean(dim=1).sqrt()
        worst = int(share.argmax())
        assert share[worst] < WITHIN[case.use_case], f"token {worst} of {tokens}"


@pytest.mark.parametrize(("product", "case"), [each for each in EVERY if "pieces" not in str(each.id)])
def test_rows_are_the_twins(product: str, case: Case, answers: Any) -> None:
    """Bit for bit, on each rank, from operands made of the checkpoint's numbers; the twin takes a step in one call."""
    for answer in answers(product, case):
        assert answer["differs"] == []


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_ranks_return_the_same_rows(product: str, case: Case, answers: Any) -> None:
    first, second = (answer["rows"] for answer in answers(product, case))
    assert first.keys() == second.keys() == set(case.tokens)
    for tokens in case.tokens:
        assert first[tokens].shape == (tokens, HIDDEN)
        assert torch.equal(first[tokens], second[tokens])


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_profile_options_and_padding(product: str, case: Case, answers: Any) -> None:
    for answer in answers(product, case):
        assert answer["profile"] == product
        assert "megamoe" not in answer["options left"]
        assert answer["use case"] == case.use_case
        # I = 768 is no size of A2 and A3 (docs/limits.md).
        assert answer["padded to"] == (768 if case.intermediate == 768 and product.startswith("950") else 1024)
        assert answer["shared"] == ("fused" if case.fused else "vllm" if case.shared else "none")
        # Each shared expert is added once: by the operator, or by vllm-ascend.
        assert answer["theirs"] is (case.shared > 0 and not case.fused)
        assert answer["quant type"] == QUANT_TYPES[case.weights]


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_one_buffer_and_equal_calls(product: str, case: Case, answers: Any) -> None:
    """Both ranks make the same calls of the same rows; each call's mask is as long as its rows."""
    ranks = answers(product, case)
    shapes = []
    for answer in ranks:
        assert [event["call"] for event in answer["events"]].count("get_symm_buffer_for_mega_moe") == 1
        calls = calls_of(answer)
        shapes.append([call["x"]["shape"] for call in calls])
        for call in calls:
            rows = call["x"]["shape"][0]
            assert 0 < rows <= answer["chunk"]
            assert (call["topk_ids"]["dtype"], call["topk_ids"]["shape"]) == ("int32", [rows, TOPK])
            assert (call["topk_weights"]["dtype"], call["topk_weights"]["shape"]) == ("float32", [rows, TOPK])
            if product.startswith("950"):
                assert call.get("x_active_mask") is None
            else:
                assert (call["x_active_mask"]["dtype"], call["x_active_mask"]["shape"]) == ("int8", [rows])
    assert shapes[0] == shapes[1]
    per_rank = -(-LIMIT // RANKS)
    steps = [-(-tokens // RANKS) for tokens in case.tokens]
    expected = sum(-(-step // ranks[0]["chunk"]) for step in steps)
    assert len(shapes[0]) == expected
    assert ranks[0]["chunk"] == per_rank or case.name == "pieces"


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_weights_are_cast_one_expert_at_a_time(product: str, case: Case, answers: Any) -> None:
    """To the format that the operator's table asks for, from contiguous memory; and each weight has it afterwards."""
    expected = FORMATS[case.use_case]
    for answer in answers(product, case):
        casts, experts = answer["casts"], EXPERTS // RANKS + (case.shared if case.fused else 0)
        assert len(casts) == experts * sum(found != ND for found in expected)
        for cast in casts:
            assert (len(cast["shape"]), cast["contiguous"], cast["asked"]) == (2, True, NZ)
            types = {name: cast[name] for name in ("customize_dtype", "input_dtype") if name in cast}
            assert types == (FP4 if cast["got"] == NZ_C0_16 else {})
        assert {cast["got"] for cast in casts} == {found for found in expected if found != ND}
        for call in calls_of(answer):
            for name, found in zip(("l1_weights", "l2_weights"), expected, strict=True):
                assert {weight["format"] for weight in call[name]} <= {found, NCL} - ({NCL} if found != ND else set())


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_step_above_the_capacity_of_a_call_takes_several(product: str, answers: Any) -> None:
    case = next(case for case in CASES[product] if case.name == "pieces")
    first, _ = answers(product, case)
    assert first["chunk"] < -(-LIMIT // RANKS)
    assert len(calls_of(first)) > 1


@pytest.mark.parametrize(("product", "case"), EVERY)
def test_more_rows_than_planned_are_rejected_on_all_ranks(product: str, case: Case, answers: Any) -> None:
    for answer in answers(product, case):
        assert "258 rows in one step, but the buffer was planned for 257 per rank" in answer["above"]


@pytest.mark.parametrize("product", PRODUCTS)
def test_padding_reaches_no_expert(product: str, answers: Any) -> None:
    """One token over two ranks: the second rank's row is padding, said by the mask, or by ids of -1 on 950."""
    case = CASES[product][0]
    first, second = (calls_of(answer)[0] for answer in answers(product, case))
    if product.startswith("950"):
        assert first["topk_ids"]["values"][0] != [-1, -1]
        assert second["topk_ids"]["values"] == [[-1, -1]]
    else:
        assert (first["x_active_mask"]["values"], second["x_active_mask"]["values"]) == ([1], [0])


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_buffer_stands_on_the_right_group(product: str, answers: Any) -> None:
    """The mc2 group on A2 and A3, one of our own on 950; it holds all ranks and all experts."""
    for answer in answers(product, CASES[product][0]):
        created = next(event["given"] for event in answer["events"] if event["call"].startswith("get_symm_buffer"))
        assert created["group"]["ranks"] == list(range(RANKS))
        assert created["num_experts"] == EXPERTS
        assert (created["group"]["group"] == answer["mc2 group"]) is not product.startswith("950")
