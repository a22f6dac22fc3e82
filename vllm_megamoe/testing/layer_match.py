"""One layer of a checkpoint through the operator's twin, beside the numbers that it should compute with, in float64."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.checkpoint.explained import EXACT, beyond_format, conversion_steps
from vllm_megamoe.checkpoint.reading import Files, StoredLayer
from vllm_megamoe.checkpoint.recognise import SIDE_FILES, section_of
from vllm_megamoe.checkpoint.stored.matrix import cut_expert, values_of
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.experts.convert import convert, fitted
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.folder import expected_layer, survey_folder
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.model import read_model
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer
from vllm_megamoe.testing.asserts import ACTIVATIONS
from vllm_megamoe.testing.checkpoints import TinyCheckpoint

Weights = tuple[Tensor, Tensor]
"""w13 float64 [2I, H], gate rows first, and w2 float64 [H, I] of one expert."""

SAME = 2.0**-20
"""Numbers that are the same but for the float32 in which they are read."""


@dataclass(frozen=True)
class _Reference:
    """Where the expected numbers come from.

    Attributes:
        weights: of an expert.
        original: the unquantised layer, where its format must explain the difference.
    """

    weights: Callable[[int], Weights]
    original: StoredLayer | None = None


def match_layer(
    checkpoint: str | os.PathLike[str],
    layer: int,
    against: Any,
    use_case: str,
    profile: str,
    tokens: int,
    weight_limit: float | None,
) -> None:
    """See `asserts.assert_layer_matches`."""
    facts, stored = _open(Path(checkpoint), layer)
    reference = _reference(checkpoint if against is None else against, layer)
    consent = "strict" if use_case == "auto" else "allow"
    # Padding may cost what it likes here, and a product's least number of ranks has to be there.
    options = {"use_case": use_case, "requant": consent, "profile": profile, "max_padding_overhead": 100.0}
    engine = EngineFacts("bfloat16") if profile == "none" else EngineFacts("bfloat16", 2, expert_parallel=True)
    plan = plan_layer(engine, facts, Options.parse({"megamoe": options}))
    generator = torch.Generator().manual_seed(layer)
    x = torch.randn(tokens, facts.hidden, generator=generator).bfloat16()
    for expert in range(facts.num_experts):
        expected = reference.weights(expert)
        _check_weights(stored, expert, expected, reference.original, weight_limit)
        _check_output(stored, expert, expected, plan, x)


def _open(folder: Path, layer: int) -> tuple[MoeFacts, StoredLayer]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    side = {name: json.loads((folder / name).read_text()) for name in SIDE_FILES if (folder / name).is_file()}
    model = read_model(config, side)
    found = next((each for each in model.layers if each.index == layer and not each.draft), None)
    if found is None:
        there = [each.index for each in model.layers]
        raise ConfigError(f"{folder}: no experts in layer {layer}; expected one of {there}. Name one of them.")
    survey = survey_folder(folder, config, side, [found], model.num_layers)
    if survey.problems:
        raise CheckpointError("\n".join(map(str, survey.problems)))
    expected, tensors = expected_layer(found, model.num_layers), survey.layers[found.name]
    section, architecture = section_of(config), model.architecture
    return found, StoredLayer(Files(folder), expected, tensors, section, architecture, found.gate_up_interleaved)


def _reference(against: Any, layer: int) -> _Reference:
    if isinstance(against, TinyCheckpoint):
        against = against.experts(layer)
    if isinstance(against, tuple):
        w13, w2 = against
        return _Reference(lambda expert: (w13[expert].double(), w2[expert].double()))
    if against is None or not (Path(against) / "config.json").is_file():
        raise ConfigError(f"against={against!r}; expected (w13, w2), a TinyCheckpoint, or the folder of the original.")
    original = _open(Path(against), layer)[1]
    return _Reference(lambda expert: _values(original, expert), original)


def _values(stored: StoredLayer, expert: int) -> Weights:
    gate, up, down = (values_of(matrix).double() for matrix in stored.matrices(expert).values())
    return torch.cat([gate, up]), down


def _check_weights(
    stored: StoredLayer, expert: int, expected: Weights, original: StoredLayer | None, limit: float | None
) -> None:
    matrices = stored.matrices(expert)
    gate, up = torch.chunk(expected[0], 2)
    for (name, matrix), meant in zip(matrices.items(), (gate, up, expected[1]), strict=True):
        values = values_of(matrix).double()
        where = f"expert {expert}, {name}"
        assert values.shape == meant.shape, f"{where}: {list(values.shape)}, expected {list(meant.shape)}"
        if original is not None and limit is None:
            beyond = beyond_format(values.float(), meant.float(), matrix, stored.layer.form)
            assert beyond is None, f"{where}: {beyond}"
            continue
        error = float((values - meant).norm() / meant.norm())
        bound = SAME if limit is None else limit
        if not error <= bound:
            rows = (values - meant).norm(dim=1) / meant.norm(dim=1).clamp(min=1e-30)
            row = int(rows.nan_to_num(nan=1e30).argmax())
            raise AssertionError(
                f"{where}: the numbers are off by {error:.3g} of their size, expected at most {bound:.3g}; the worst "
                f"is row {row}: {float(rows[row]):.3g}"
            )


def _check_output(stored: StoredLayer, expert: int, expected: Weights, plan: LayerPlan, x: Tensor) -> None:
    own, made = stored.expert(expert), _fitted(stored, expert, plan)
    before, held = _numbers(own, own), _numbers(made, own)
    steps = conversion_steps([w.float() for w in before], [w.float() for w in held], made.kind, exact=not plan.loss)
    what = f"expert {expert}: as {plan.use_case}"
    assert steps <= EXACT, (
        f"{what} a weight is {steps:.3g} steps of its format from the checkpoint's, expected "
        f"{'at most one' if plan.loss else 'the same number'}"
    )
    meant = _forward(expected, plan, x)
    off, size = _through_operator(made, plan, x) - meant, float(meant.norm())
    error, bound = float(off.norm()) / size, ACTIVATIONS[plan.use_case.value]
    bound += float((_forward(held, plan, x) - meant).norm()) / size
    rows = off.norm(dim=1) / meant.norm(dim=1).clamp(min=1e-30)
    worst = int(rows.nan_to_num(nan=1e30).argmax())
    assert error <= bound, (
        f"{what} its output is off by {error:.3g} of its size, expected at most {bound:.3g}; the worst is token "
        f"{worst}: {float(rows[worst]):.3g}"
    )


def _fitted(stored: StoredLayer, expert: int, plan: LayerPlan) -> Experts:
    """One expert of the use case's kind, padded as the plan says."""
    sizes = plan.padding
    return fitted(stored.expert(expert), plan.use_case, sizes.hidden, sizes.intermediate_hidden, torch.bfloat16)


def _numbers(experts: Experts, like: Experts) -> Weights:
    """The numbers of one expert without its padding."""
    gate, up, down = (values_of(matrix).double() for matrix in cut_expert(experts))
    hidden, width = like.hidden, like.intermediate
    return torch.cat([gate[:width, :hidden], up[:width, :hidden]]), down[:hidden, :width]


def _activation(plan: LayerPlan) -> dict[str, Any]:
    used = plan.activation
    return {
        "activation": used.name,
        "activation_clamp": used.clamp,
        "activation_params": dict(used.params) or None,
    }


def _forward(weights: Weights, plan: LayerPlan, x: Tensor) -> Tensor:
    """float64 [T, H], but for the activation, which is float32."""
    gate, up = (x.double() @ weights[0].t()).float().chunk(2, dim=1)
    return Activation.of(**_activation(plan)).apply(gate, up).double() @ weights[1].t()


def _through_operator(experts: Experts, plan: LayerPlan, x: Tensor) -> Tensor:
    """float64 [T, H]: a layer of this one expert, because what it makes of a row depends on no other."""
    operands = convert(experts, plan.use_case)
    rows, hidden = x.shape
    with settings(profile="none", backend="cpu"):
        buffer = get_symm_buffer_for_mega_moe(None, 1, rows, 1, **operands.buffer_arguments())
        y, _ = mega_moe(
            pad(x, (0, operands.hidden - hidden)),
            torch.zeros(rows, 1, dtype=torch.int32),
            torch.ones(rows, 1),
            sym_buffer=buffer,
            **operands.arguments(),
            **_activation(plan),
        )
        buffer.destroy()
    return y[:, :hidden].double()
