"""Checkpoints whose config already names a method, and experts that are quantised at load."""

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.checkpoints import named_megamoe, with_int8_attention
from engine.engines import EAGER, FLOAT32, MEGAMOE, TP2, Engines, Prompts
from engine.steps import Seen, damaged, greedy, layers, seen
from safetensors.torch import load_file
from torch import Tensor

pytestmark = pytest.mark.engine


@pytest.mark.full
def test_linear_layers_keep_the_checkpoints_own_method(
    engines: Engines, checkpoint: str, prompts: Prompts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """int8 attention by compressed-tensors, BF16 experts: the same tokens as vLLM without the plugin's flag."""
    mixed = str(with_int8_attention(Path(checkpoint), tmp_path_factory.mktemp("mixed") / "model"))
    ask = partial(greedy, prompts=prompts[:8], max_tokens=8)
    ((plain,),) = engines.run({"model": mixed, **FLOAT32, **EAGER}, [ask])
    ((ours, held),) = engines.run({"model": mixed, **FLOAT32, **MEGAMOE, **EAGER}, [ask, layers])
    assert ours == plain
    assert [layer["use_case"] for layer in held] == ["a16w16", "a16w16"]


@pytest.fixture(scope="module")
def requantised(
    engines: Engines, checkpoint: str, prompts: Prompts, tmp_path_factory: pytest.TempPathFactory
) -> list[list[Any]]:
    """a8w8-int by consent, on a checkpoint that names megamoe itself: per rank what its layers saw, gave and held."""
    named = str(named_megamoe(Path(checkpoint), tmp_path_factory.mktemp("named") / "model"))
    options = {"megamoe": {"use_case": "a8w8-int", "requant": "allow"}}
    llm = {"model": named, **TP2, **EAGER, "enable_prefix_caching": False, "additional_config": options}
    step = partial(seen, prompts=prompts[:8])
    return engines.run(llm, [step, layers, partial(damaged, kind="scaled", step=step)])


def test_requantised_experts_are_integers_in_one_buffer(requantised: list[list[Any]]) -> None:
    assert len(requantised) == 2
    for _, held, _ in requantised:
        assert [layer["use_case"] for layer in held] == ["a8w8-int", "a8w8-int"]
        assert {layer["weights_left"] for layer in held} == {0}
        assert len({layer["buffer"] for layer in held}) == 1
        assert {layer["calls"] for layer in held} == {1}


def test_every_row_is_counted_by_the_rank_that_holds_its_expert(requantised: list[list[Any]]) -> None:
    """Top-2 of each row: ids from the router, counts by expert from both ranks together."""
    (rows, first, _), (_, second, _) = requantised
    for layer, (a, b) in enumerate(zip(first, second, strict=True)):
        chosen = torch.bincount(rows[layer].ids.flatten().long(), minlength=8)
        assert a["counts"] + b["counts"] == chosen.tolist()


LIMIT = 2.0**-6
"""Largest error of all rows together, in parts of their size; of one row or one channel alone, four times that.

Expected is the formula without the roundings between its steps. What the twin rounds and the formula does not: both
sums to float16, at random 2^-11 / sqrt(3) = 0.0003 of a value, and rows to bfloat16 twice, 0.0011 each. The first moves
activations by d = 0.0003 of their size, silu by up to twice that, so some land on the neighbouring code: a code flips
with probability d / step, an error of one step, together sqrt(d * step). A step is 1/127 of the row's largest
activation, which is at most sqrt(1024) = 32 times the row's size: step < 0.25, so sqrt(0.0006 * 0.25) = 0.0123. In all
sqrt(0.0123^2 + 2 * 0.0003^2 + 2 * 0.0011^2) = 0.0124. An output less by a tenth is 0.1, an expert or a scale in the
wrong place 1.
"""


def test_requantised_rows_are_the_formula(checkpoint: str, requantised: list[list[Any]]) -> None:
    """On both ranks, at every layer: the layer's own inputs through the document's formula give its rows."""
    for rank, (rows, _, _) in enumerate(requantised):
        for layer, one in enumerate(rows):
            whole, worst = errors(expected_rows(checkpoint, layer, one), one.y)
            assert whole < LIMIT, f"rank {rank}, layer {layer}: {whole:.4f}"
            assert worst < 4 * LIMIT, f"rank {rank}, layer {layer}: {worst:.4f}"


def test_a_tenth_less_is_seen(checkpoint: str, requantised: list[list[Any]]) -> None:
    """Negative control."""
    for layer, one in enumerate(requantised[0][2]):
        whole, worst = errors(expected_rows(checkpoint, layer, one), one.y)
        assert whole > LIMIT
        assert worst > 4 * LIMIT


def errors(expected: Tensor, found: Tensor) -> tuple[float, float]:
    """The error of all rows together, and of the worst row or channel; the checkpoint's first channels are zeros."""
    error = found.double() - expected
    by_line = [float((error.norm(dim=d) / expected.norm(dim=d).clamp(min=2.0**-40)).max()) for d in (0, 1)]
    return float(error.norm() / expected.norm()), max(by_line)


def expected_rows(checkpoint: str, layer: int, one: Seen) -> Tensor:
    """A8W8-INT by operator_readme.txt, in float64: tokens and activations to int8 per row, weights per channel."""
    tensors = weights(checkpoint)
    x, y = int8_rows(one.x.double()), torch.zeros(one.x.shape, dtype=torch.float64)
    for expert in range(8):
        gate, up, down = (
            int8_rows(tensors[f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight"].double())
            for name in ("gate", "up", "down")
        )
        row, slot = (one.ids == expert).nonzero(as_tuple=True)
        g = x[row] @ gate.T
        activation = g * g.sigmoid() * (x[row] @ up.T)
        y.index_add_(0, row, one.weights[row, slot, None].double() * (int8_rows(activation) @ down.T))
    return y


@cache
def weights(checkpoint: str) -> dict[str, Tensor]:
    return load_file(f"{checkpoint}/model.safetensors")


def int8_rows(values: Tensor) -> Tensor:
    """[rows, K] as symmetric int8 with a scale per row gives them back: s = amax / 127, round(v / s) * s."""
    scale = values.abs().amax(dim=1, keepdim=True).clamp(min=2.0**-40) / 127
    return (values / scale).round() * scale
