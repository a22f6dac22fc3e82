"""Zero-padding changes no bit of a result, in any use case, and is encoded as the formats want it (B52)."""

from dataclasses import replace

import pytest
import torch
from layer.layers import facts_of, padded_state, plan_of, rows_of
from ops.calls import as_got
from ops.compare import compare_rank
from oracle.case import Case
from oracle.make import Shape, make_case
from oracle.operator import expected

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import to_operands
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.padding import Padding
from vllm_megamoe.profiles.use_cases import UseCase

HIDDEN, WIDTH = 96, 64
PADDED_HIDDEN, PADDED_WIDTH = 160, 96


def padded_plan(case: Case) -> LayerPlan:
    """As for a product whose sizes are larger; profile none never pads by itself."""
    use_case = UseCase(case.use_case)
    built = replace(case, use_case="a8w8-int") if use_case is UseCase.A8W4_INT else case
    plan = plan_of(built, facts=facts_of(case))
    padding = Padding(PADDED_HIDDEN, PADDED_WIDTH, HIDDEN, WIDTH)
    return replace(plan, use_case=use_case, padding=padding, buffer=replace(plan.buffer, hidden=PADDED_HIDDEN))


@pytest.mark.parametrize("use_case", list(UseCase))
def test_a_padded_layer_gives_the_same_bits(use_case: UseCase) -> None:
    case = make_case(use_case.value, Shape(hidden=HIDDEN, intermediate=WIDTH))
    plan = padded_plan(case)
    state = padded_state(case, 0, plan)
    x, ids, weights = rows_of(case, 0)
    y = state.run(x, ids, weights)
    (want,) = expected(case)
    assert want.y.exact
    compare_rank(0, as_got(y, state.counts.to(torch.int32), ids), want)


def test_gate_and_up_are_padded_separately() -> None:
    rows = torch.arange(1.0, 5.0).view(1, 4, 1).expand(1, 4, 2).to(torch.bfloat16)
    padded = DenseExperts(rows, torch.ones(1, 2, 2, dtype=torch.bfloat16)).padded(3, 4)
    assert padded.w13[0].tolist() == [[v, v, 0] if v else [0, 0, 0] for v in (1, 2, 0, 0, 3, 4, 0, 0)]
    assert padded.w2[0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]


def test_integer_padding_is_code_0_with_scale_1() -> None:
    experts = IntExperts(
        torch.full((1, 4, 2), 5, dtype=torch.int8),
        torch.full((1, 4), 0.5),
        torch.full((1, 2, 2), -3, dtype=torch.int8),
        torch.full((1, 2), 0.25),
        8,
    )
    padded = experts.padded(3, 3)
    assert padded.w13_scale.tolist() == [[0.5, 0.5, 1, 0.5, 0.5, 1]]
    assert padded.w2_scale.tolist() == [[0.25, 0.25, 1]]
    assert padded.w13[0, 2].tolist() == [0, 0, 0]
    assert padded.w2[0].tolist() == [[-3, -3, 0], [-3, -3, 0], [0, 0, 0]]


@pytest.mark.parametrize(("nibbles", "byte"), [("twos_complement", 0x00), ("offset_binary", 0x88)])
def test_int4_padding_is_the_nibble_of_zero(nibbles: str, byte: int) -> None:
    experts = IntExperts(
        torch.full((1, 128, 64), 3, dtype=torch.int8),
        torch.ones(1, 128),
        torch.full((1, 64, 64), 3, dtype=torch.int8),
        torch.ones(1, 64),
        4,
    )
    (operands,) = to_operands(experts.padded(128, 64), UseCase.A8W4_INT, nibbles)  # type: ignore[arg-type]
    # [K, N] in blocks of 32 bytes along N: [N / 64, K / 16, 16, 32]; the added inputs are rows 64 to 127.
    added = inner(operands.l1).view(torch.uint8)[:, 4:]
    assert set(added.flatten().tolist()) == {byte}


@pytest.mark.parametrize("elem", ["e4m3", "e5m2", "e2m1"])
def test_mx_padding_has_scale_byte_127(elem: str) -> None:
    """0xFF would be NaN, and NaN times code 0 poisons a row. A group that was there keeps its scale."""
    per_byte = 2 if elem == "e2m1" else 1
    ones = [torch.full(shape, 1, dtype=torch.uint8) for shape in ((1, 80, 48 // per_byte), (1, 48, 40 // per_byte))]
    scales = [torch.full(shape, 100, dtype=torch.uint8) for shape in ((1, 80, 2), (1, 48, 2))]
    padded = MxExperts(ones[0], scales[0], ones[1], scales[1], elem).padded(96, 64)  # type: ignore[arg-type]
    kept = torch.zeros(1, 128, 3, dtype=torch.bool)
    kept[:, :40, :2] = kept[:, 64:104, :2] = True
    assert padded.w13_scale.equal(torch.where(kept, 100, 127).to(torch.uint8))
    assert padded.w2_scale[0, :48].unique().tolist() == [100]
    assert padded.w2_scale[0, 48:].unique().tolist() == [127]
    assert not padded.w13[:, 40:64].any()
    assert not padded.w2[:, :, 40 // per_byte :].any()


@pytest.mark.parametrize(("hidden", "width"), [(1, 3), (3, 1)])
def test_sizes_below_the_experts_own_are_rejected(hidden: int, width: int) -> None:
    """torch's pad would cut weights off without a word."""
    experts = DenseExperts(torch.ones(1, 4, 2), torch.ones(1, 2, 2))
    with pytest.raises(LayoutError, match=rf"hidden 2 and intermediate_hidden 2 cannot become {hidden} and {width}"):
        experts.padded(hidden, width)


def test_nothing_to_pad_is_the_same_object() -> None:
    experts = DenseExperts(torch.ones(1, 4, 2), torch.ones(1, 2, 2))
    assert experts.padded(2, 2) is experts
