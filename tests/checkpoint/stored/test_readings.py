"""Every projection of every checkpoint, read by `checkpoint.stored`, against the independent readings of tests/formats.

Those import nothing of the package. Where the operator can hold the numbers, codes and scales must be the very same;
values of other formats differ by the float32 that they are computed in.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats.cases import FIXTURES, GENERATED, Case
from formats.generate.recipes import RECIPES
from formats.readings.experts import Projection
from formats.readings.names import experts_of, names_of
from formats.readings.store import Store
from safetensors import safe_open

from vllm_megamoe.checkpoint.stored.matrix import DenseMatrix, IntMatrix, Matrix, MxMatrix, values_of
from vllm_megamoe.checkpoint.stored.part import read_projection
from vllm_megamoe.checkpoint.stored.table import STORED, stored_of
from vllm_megamoe.layout.packing import unpack_e2m1

LAYOUTS = {
    "fp16": "bf16",
    "msmodelslim-float": "bf16",
    "auto-round-awq-int4": "awq-int4",
    "auto-round-awq-int4-group": "awq-int4-group",
    "auto-round-fp8-block": "fp8-block",
}
"""Names of the readings for what the package calls otherwise."""


def tensors_of(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Tensors behind a prefix, by the rest of their names."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = opened.get_tensor(name)
    return found


def codes_of(matrix: Matrix) -> tuple[Any, Any] | None:
    """Codes one a byte, and scales, as numpy; None for values without."""
    if isinstance(matrix, IntMatrix):
        return matrix.codes.numpy().astype(np.int64), matrix.scale.numpy().astype(np.float64)
    if isinstance(matrix, MxMatrix):
        codes = unpack_e2m1(matrix.codes) if matrix.elem == "e2m1" else matrix.codes
        return codes.numpy(), matrix.scale.numpy()
    return None


def compare(matrix: Matrix, expected: Projection, where: str) -> None:
    if expected.codes is not None and (found := codes_of(matrix)) is not None:
        kind = f"int{matrix.bits}" if isinstance(matrix, IntMatrix) else getattr(matrix, "elem", "")
        assert kind == expected.codes.kind, where
        assert np.array_equal(found[0], expected.codes.codes), where
        assert np.array_equal(found[1], expected.codes.scale), where
        return
    assert expected.codes is None or isinstance(matrix, DenseMatrix), f"{where}: {type(matrix).__name__}"
    got = values_of(matrix).double().numpy()
    if isinstance(matrix, DenseMatrix):
        assert np.array_equal(got, expected.values), where
    else:
        # At most three float32 roundings (scale, scale times factor, product), each of 2^-24.
        assert (np.abs(got - expected.values) <= 3 * 2.0**-24 * np.abs(expected.values)).all(), where


def check(case: Case, folder: Path) -> None:
    store = Store.open(folder)
    names = names_of(store)
    for layer, layout in case.layouts(folder).items():
        expected = case.expected(folder)[layer]
        stored = stored_of(LAYOUTS.get(layout, layout), store.config.get("quantization_config"))
        for e, expert in zip(experts_of(store, layer), expected.experts, strict=True):
            sides = zip(names.projections, (expert.gate, expert.up, expert.down), strict=True)
            for name, projection in sides:
                prefix = f"{names.prefix(layer)}{names.experts.format(e)}{name}"
                tensors = tensors_of(folder, f"{prefix}.")
                compare(read_projection(stored, tensors, *projection.values.shape, prefix), projection, prefix)


def readable(case: Case) -> bool:
    """Whether the experts have tensors of their own; of one tensor for all, vLLM's loader hands over slices."""
    one_by_one = not case.generated or "{}" in RECIPES[case.name].family.expert
    return one_by_one and "gpt_oss" not in case.name and (case.format in STORED or case.format in LAYOUTS)


@pytest.mark.parametrize("case", [c for c in FIXTURES if readable(c)], ids=str)
def test_files_of_real_tools(case: Case, shared_dir: Path) -> None:
    check(case, case.place(shared_dir))


@pytest.mark.parametrize("case", [c for c in GENERATED if readable(c)], ids=str)
def test_every_code_of_every_format(case: Case, tmp_path: Path) -> None:
    check(case, case.place(tmp_path))
