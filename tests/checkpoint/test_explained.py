"""What rounding into a kind may move, on numbers that ml_dtypes rounds; the largest at the edge of a power of two."""

import ml_dtypes
import numpy as np
import pytest
import torch

from vllm_megamoe.checkpoint.explained import conversion_step

TYPES = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8), "e2m1": (ml_dtypes.float4_e2m1fn, 6.0, 2)}
"""Element type, largest value, exponent of the largest power of two (OCP MX 1.0, table 1)."""

EDGES = (1.0, 1.49, 1.74, 1.76, 1.9, 1.996, 1.9999, 2.0)
"""Largest magnitude of a group; the last but one is 2 in bfloat16."""


@pytest.mark.parametrize("looks_at_bf16", [False, True], ids=["float32 looked at", "bfloat16 looked at"])
@pytest.mark.parametrize("kind", sorted(TYPES))
def test_a_plain_quantiser_stays_within_a_step(kind: str, looks_at_bf16: bool) -> None:
    element, most, exponent = TYPES[kind]
    fractions = np.linspace(0.01, 1.0, 32)
    values = np.outer(EDGES, fractions).astype(np.float32)
    largest = values.max(axis=1, keepdims=True)
    if looks_at_bf16:
        largest = largest.astype(ml_dtypes.bfloat16).astype(np.float32)
    scale = np.exp2(np.floor(np.log2(largest)) - exponent).astype(np.float32)
    rounded = np.clip(values / scale, -most, most).astype(element).astype(np.float32) * scale
    step = conversion_step(torch.from_numpy(values), kind).numpy()  # type: ignore[arg-type]
    taken = np.abs(rounded - values) / step
    assert taken.max() <= 1.0, f"group of {EDGES[int(taken.max(axis=1).argmax())]}: {taken.max():.3f} steps"
    assert taken.max() > 0.4  # the step is no guess far above what happens
