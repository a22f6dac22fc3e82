"""Every conversion that the table of formats promises, from files to operands and back, against the readings' numbers.

Exact ones give the same numbers, codes and scales; lossy ones lose what an independent quantiser loses on the same
numbers (formats.losses), and something. Codes and scales of the generated files are all different.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoint.stored.test_readings import LAYOUTS, readable, tensors_of
from formats.cases import FIXTURES, GENERATED, Case, expected_loss, holds
from formats.losses import loss
from formats.readings.experts import Expert, Projection
from formats.readings.names import names_of
from formats.readings.numbers import F64
from formats.readings.store import Store

from vllm_megamoe.checkpoint.formats import FORMATS
from vllm_megamoe.checkpoint.stored.matrix import IntMatrix, Matrix, MxMatrix, RealMatrix, check_kept, join_expert
from vllm_megamoe.checkpoint.stored.part import read_projection
from vllm_megamoe.checkpoint.stored.table import stored_of
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts
from vllm_megamoe.experts.convert import convert
from vllm_megamoe.experts.operands import ExpertOperands, from_operands
from vllm_megamoe.profiles.use_cases import UseCase

CASES = [case for case in FIXTURES + GENERATED if readable(case)]
HAS_FREE_ROUNDING = 3 * 2.0**-24
"""At most three float32 roundings of a number whose codes no use case holds (see test_readings)."""


def one_expert(case: Case, folder: Path) -> tuple[list[Matrix], Expert, str]:
    """Expert 1 of the first layer: as the package reads it and by the readings."""
    store = Store.open(folder)
    names = names_of(store)
    layer, layout = next(iter(case.layouts(folder).items()))
    expected = case.expected(folder)[layer].experts[1]
    stored = stored_of(LAYOUTS.get(layout, layout), store.config.get("quantization_config"))
    found = []
    for name, projection in zip(names.projections, (expected.gate, expected.up, expected.down), strict=True):
        where = f"{names.prefix(layer)}{names.experts.format(1)}{name}"
        tensors = tensors_of(folder, f"{where}.")
        found.append(read_projection(stored, tensors, *projection.values.shape, where))
    return found, expected, where


def numbers(experts: Experts) -> list[F64]:
    """Gate, up and down in float64, by the definitions of the formats."""
    found = []
    for name in ("w13", "w2"):
        w = getattr(experts, name)[0]
        if isinstance(experts, DenseExperts):
            found.append(w.double().numpy())
            continue
        scale = getattr(experts, f"{name}_scale")[0].numpy()
        if isinstance(experts, IntExperts):
            found.append(w.numpy().astype(np.float64) * scale.astype(np.float64)[:, None])
            continue
        codes = w.numpy()
        if experts.elem == "e2m1":
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
        dtype = ml_dtypes.float4_e2m1fn if experts.elem == "e2m1" else ml_dtypes.float8_e4m3fn
        factor = np.exp2(scale.astype(np.float64) - 127).repeat(32, axis=1)[:, : codes.shape[1]]
        found.append(codes.astype(np.uint8).view(dtype).astype(np.float64) * factor)
    gate, up = np.split(found[0], 2)
    return [gate, up, found[1]]


def converted(matrices: list[Matrix], use_case: str, dtype: torch.dtype = torch.bfloat16) -> list[F64]:
    experts = join_expert(*matrices, "expert")
    operands = convert(experts, UseCase(use_case), dtype=dtype)
    columns = {n: None if (c := getattr(operands, n)) is None else c[0] for n in ExpertOperands.__dataclass_fields__}
    return numbers(from_operands([ExpertOperands(**columns)], UseCase(use_case)))


def kept(matrices: list[Matrix], use_case: str, dtype: torch.dtype = torch.bfloat16) -> bool:
    """What the loader says of a plan that promised every number."""
    try:
        for matrix in matrices:
            check_kept(matrix, UseCase(use_case), dtype, "the.projection")
    except CheckpointError:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=str)
def test_promises_are_kept(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = case.place(tmp_path if case.generated else request.getfixturevalue("shared_dir"))
    matrices, expected, _ = one_expert(case, folder)
    projections: list[Projection] = list(expected)
    facts = FORMATS[case.format]
    for use_case in (*facts.use_cases, *facts.lossy):
        got = converted(matrices, use_case)
        exact = all(holds(use_case, projection) for projection in projections)
        assert kept(matrices, use_case) == exact, use_case
        assert exact or use_case in facts.lossy or case.name in ("fp16", "fp8-block-false-claim"), use_case
        for values, projection in zip(got, projections, strict=True):
            if exact:
                assert np.array_equal(values, projection.values), use_case
                continue
            lost, explained = loss(projection.values, values), expected_loss(projection.values, use_case)
            assert (lost == 0) == holds(use_case, projection), use_case
            # Another rounding of float32 here and there moves a number by one step of its format, of many.
            assert lost == pytest.approx(explained, rel=0.02), use_case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_twins_float32_holds_all(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = case.place(tmp_path if case.generated else request.getfixturevalue("shared_dir"))
    matrices, expected, _ = one_expert(case, folder)
    assert kept(matrices, "a16w16", torch.float32)
    for values, projection in zip(converted(matrices, "a16w16", torch.float32), expected, strict=True):
        assert (np.abs(values - projection.values) <= HAS_FREE_ROUNDING * np.abs(projection.values)).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fp8-block-false-claim", r"\.weight_scale_inv holds scales that are no powers of two: a8w8-fp would round"),
        ("ms-w4a8-group-rounds", r"\.weight_scale_second times the codes gives numbers that are no codes of INT8"),
        ("ct-nvfp4", r"\.weight_scale holds a scale for each 16 inputs"),
        ("gptq-group", r"has [2-9]\d* scales in an output channel"),
    ],
)
def test_a_broken_promise_names_its_tensor(name: str, said: str, tmp_path: Path) -> None:
    case = next(case for case in GENERATED if case.name == name)
    matrices, _, where = one_expert(case, case.place(tmp_path))
    use_case = UseCase.A8W8_FP if "fp" in name else UseCase.A8W8_INT
    with pytest.raises(CheckpointError, match=said) as error:
        check_kept(matrices[2], use_case, torch.bfloat16, where)
    assert str(error.value).startswith(where)


@pytest.mark.parametrize("free", range(3))
def test_one_projection_of_free_numbers_makes_the_expert_free(free: int) -> None:
    """msModelSlim's W4A8 in groups gives INT8 where every product is one, and free numbers elsewhere, by projection."""
    codes = torch.arange(-8, 8, dtype=torch.int8).repeat(32, 2)
    whole = IntMatrix(codes, torch.tensor([0.5, 1.0, 2.0, 4.0]).repeat(8), 8)
    loose = RealMatrix(codes.float() * 0.3)
    matrices: list[Matrix] = [loose if place == free else whole for place in range(3)]
    experts = join_expert(*matrices, "expert")
    assert isinstance(experts, DenseExperts)
    expected = [codes.numpy() * (np.float32(0.3) if place == free else SCALES) for place in range(3)]
    for values, projection in zip(numbers(experts), expected, strict=True):
        assert np.array_equal(values, projection.astype(np.float64))
    assert kept(matrices, "a8w8-int") is False
    assert np.isfinite(converted(matrices, "a8w8-int")[0]).all()


SCALES = np.tile(np.array([[0.5], [1.0], [2.0], [4.0]], np.float32), (8, 1))


def test_two_kinds_of_codes_are_no_expert() -> None:
    whole = IntMatrix(torch.ones(4, 32, dtype=torch.int8), torch.ones(4), 8)
    other = MxMatrix(torch.zeros(4, 32, dtype=torch.uint8), torch.full((4, 1), 127, dtype=torch.uint8), "e4m3")
    with pytest.raises(CheckpointError, match=r"in different ways \(gate int8, up mx e4m3, down int8\)"):
        join_expert(whole, other, whole, "expert")
