"""Experts read from a folder one at a time: the numbers of the independent readings, in every format and naming."""

from pathlib import Path

import numpy as np
import pytest
from formats.cases import FIXTURES, GENERATED, Case
from formats.readings.experts import Projection

from vllm_megamoe.checkpoint.stored.matrix import Matrix, values_of
from vllm_megamoe.cli.checkpoint.opened import open_checkpoint
from vllm_megamoe.errors import CheckpointError

UNREAD = ("gpt-oss-mxfp4", "ms-w4a4-dualscale", "gpt_oss__openai-layout__mxfp4_blocks")
"""Refused by the plan, with the reason: biases, and a second scale that nobody can tell the meaning of."""
READ = [
    pytest.param(case, marks=[] if case.generated else pytest.mark.full)
    for case in (*GENERATED, *FIXTURES)
    if case.name not in UNREAD
]
FLOAT32 = 2.0**-23
"""Code times scale is one rounding in float32, two where the scale is a product itself; the readings take float64."""


def same(matrix: Matrix, projection: Projection) -> bool:
    found = values_of(matrix).double().numpy()
    return found.shape == projection.values.shape and bool(
        (np.abs(found - projection.values) <= FLOAT32 * np.abs(projection.values)).all()
    )


@pytest.mark.parametrize("case", READ, ids=str)
def test_every_expert_is_read(request: pytest.FixtureRequest, tmp_path: Path, case: Case) -> None:
    folder = case.place(tmp_path if case.generated else request.getfixturevalue("shared_dir"))
    opened, expected = open_checkpoint(str(folder)), case.expected(folder)
    names = dict(zip((layer.index for layer in opened.layers), opened.layers, strict=True))
    seen = 0
    for place, experts in expected.items():
        layer = names.get(place) if isinstance(place, int) else opened.layers[-1]
        if layer is None:
            continue  # Step's config does not name layer 0 among those with experts
        stored = opened.stored(layer)
        for number, expert in enumerate(experts.experts):
            assert all(map(same, stored.matrices(number).values(), expert)), (place, number)
            seen += 1
        for expert in experts.shared:
            assert all(map(same, stored.shared_matrices().values(), expert)), place
    assert seen >= 4


@pytest.mark.parametrize("case", [case for case in GENERATED if case.name in UNREAD[:2]], ids=str)
def test_what_cannot_be_read_says_so(tmp_path: Path, case: Case) -> None:
    opened = open_checkpoint(str(case.place(tmp_path)))
    with pytest.raises(CheckpointError, match="expected"):
        opened.stored(opened.layers[0]).matrices(0)
