"""Every expert of a checkpoint through the operator, beside the numbers that it should compute with."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.explained import EXACT, beyond_format, matrix_bound
from vllm_megamoe.checkpoint.reading import StoredLayer
from vllm_megamoe.checkpoint.recognise import MSMODELSLIM_FILES
from vllm_megamoe.checkpoint.stored.matrix import Matrix, values_of
from vllm_megamoe.cli.checkpoint.opened import Opened, plans_of, progress
from vllm_megamoe.cli.checkpoint.run_expert import Ran, Runner, Weights, weights_of
from vllm_megamoe.cli.checkpoint.schema import OWN, CheckedLayer, CheckReport
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options

_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm", "ffn_norm", "post_attention_norm")
_LAYER = re.compile(r"^(.*?(?:layers|mtp)\.\d+)\.")
_MOST_TOLD = 3
"""Sentences about one layer."""


@dataclass(frozen=True, slots=True)
class Against:
    """The reference of a layer.

    Attributes:
        layer: the same layer of the unquantised checkpoint; None where the checkpoint's own numbers are the reference.
    """

    layer: StoredLayer | None = None

    def weights(self, number: int) -> tuple[dict[str, Matrix], Weights] | None:
        """The matrices of an expert of the original, and their numbers."""
        if self.layer is None:
            return None
        matrices = self.layer.matrices(number)
        gate, up, down = map(values_of, matrices.values())
        return matrices, (torch.cat([gate, up]), down)


def check(opened: Opened, original: Opened | None, options: Options, tokens: int) -> CheckReport:
    """Run every expert of every layer that was asked for.

    Args:
        opened: the checkpoint.
        original: its unquantised original, None to judge it by its own numbers.
        options: use case, consent and profile.
        tokens: rows that each expert gets.

    Raises:
        ConfigError: a layer cannot be run as asked, or the two checkpoints are not of one model.
    """
    problems = [*map(str, opened.survey.problems), *(map(str, original.survey.problems) if original else ())]
    plans = plans_of(opened.layers, options)
    found = []
    if not problems:
        if original is not None:
            _comparable(opened, original)
        for layer in opened.layers:
            against = Against(_same_layer(layer, original) if original is not None else None)
            try:
                found.append(_layer(opened, layer, plans[layer.name], against, tokens))
            except CheckpointError as error:
                problems.append(str(error))
    return CheckReport(
        model=opened.model.name,
        against=original.model.name if original else OWN,
        backend="cpu",
        activations=f"{tokens} Gaussian rows of rms 1, times the layer's norm weights where the files have them",
        holds=not problems and not any(layer.excess for layer in found),
        layers=tuple(found),
        problems=tuple(problems),
        notes=tuple(opened.survey.notes),
    )


def _comparable(opened: Opened, original: Opened) -> None:
    for name in MSMODELSLIM_FILES:
        metadata = opened.files.side_files.get(name, {}).get("metadata") or {}
        if isinstance(metadata, Mapping) and any("rot" in str(key).lower() for key in metadata):
            raise ConfigError(
                f"{name}: metadata {sorted(metadata)}: this checkpoint's weights are rotated; expected the numbers of "
                "the original with small errors. Drop --against."
            )
    for mine in opened.layers:
        theirs = _same_layer(mine, original).want
        sizes = (mine.num_experts, mine.hidden, mine.intermediate_hidden)
        if sizes != (theirs.experts, theirs.hidden, theirs.intermediate):
            raise ConfigError(
                f"--against {original.model.name}: {mine.name} has experts, hidden and intermediate_hidden "
                f"{(theirs.experts, theirs.hidden, theirs.intermediate)}; expected {sizes}. Give the original of this "
                "checkpoint."
            )


def _same_layer(layer: MoeFacts, original: Opened) -> StoredLayer:
    for other in original.layers:
        if (other.index, other.draft) == (layer.index, layer.draft):
            return original.stored(other)
    raise ConfigError(
        f"--against {original.model.name}: no layer {layer.index} with experts; expected the layers of "
        "the checkpoint. Give its original, or name layers that both have (--layers)."
    )


def _layer(opened: Opened, layer: MoeFacts, plan: LayerPlan, against: Against, tokens: int) -> CheckedLayer:
    stored = opened.stored(layer)
    runner = Runner(plan, _rows(opened, stored, layer, tokens))
    ran: list[Ran] = []
    excess: dict[int, str] = {}
    bounds = []
    try:
        for number in progress(range(layer.num_experts), layer.num_experts, f"layer {layer.index}"):
            experts, reference = stored.expert(number), against.weights(number)
            ran.append(runner.run(experts, reference[1] if reference else weights_of(experts)))
            told = list(_excess(stored, number, reference[0] if reference else None, plan, ran[-1]))
            if told:
                excess[number] = f"expert {number}: {'; '.join(told)}"
            if reference:
                bounds.append(_bound(stored, number, reference[0], layer))
    finally:
        runner.close()
    return _summary(layer, plan, ran, excess, bounds)


def _excess(
    stored: StoredLayer, number: int, original: Mapping[str, Matrix] | None, plan: LayerPlan, ran: Ran
) -> Iterator[str]:
    if original is not None:
        for name, matrix in stored.matrices(number).items():
            beyond = beyond_format(values_of(matrix), values_of(original[name]), matrix, stored.want.form)
            if beyond is not None:
                yield f"{stored.tensors.prefix_of(number, name)}: {beyond}"
    if ran.beyond_step > EXACT:
        expected = f"at most a step of {plan.use_case}'s format" if plan.loss else "the same numbers: this is exact"
        yield f"its operands differ from the checkpoint's numbers; expected {expected}"
    error, bound = ran.error, ran.explained / max(float(ran.reference.sum()) ** 0.5, 1e-30)
    if not error <= bound:
        yield f"its output is off by {error:.1%}, and weights and quantised rows explain {bound:.1%}"


def _bound(stored: StoredLayer, number: int, original: Mapping[str, Matrix], layer: MoeFacts) -> float:
    form, values = layer.experts_format, {name: values_of(matrix) for name, matrix in original.items()}
    return max(matrix_bound(values[name], matrix, form) for name, matrix in stored.matrices(number).items())


def _summary(
    layer: MoeFacts, plan: LayerPlan, ran: list[Ran], excess: Mapping[int, str], bounds: list[float]
) -> CheckedLayer:
    reference = sum(float(one.reference.sum()) for one in ran)
    output = sum(float(one.rows.sum()) for one in ran)
    each = torch.tensor([one.error for one in ran])
    worst = int(each.nan_to_num(nan=1e30).argmax())
    rows = torch.stack([(one.rows / one.reference.clamp(min=1e-30)).sqrt() for one in ran]).nan_to_num(nan=1e30)
    token = int(rows.amax(dim=0).argmax())
    explained = sum(one.explained**2 for one in ran)
    weights = sum(one.weights for one in ran) / max(sum(one.weights_reference for one in ran), 1e-30)
    steps = sum(one.weights_explained for one in ran) / max(sum(one.weights_reference for one in ran), 1e-30)
    told = [*list(excess.values())[:_MOST_TOLD]]
    if len(excess) > _MOST_TOLD:
        told.append(f"and {len(excess) - _MOST_TOLD} more experts: {', '.join(map(str, list(excess)[_MOST_TOLD:]))}")
    return CheckedLayer(
        name=layer.name,
        use_case=plan.use_case.value,
        weight_rel_err=weights**0.5,
        output_rel_err=(output / max(reference, 1e-30)) ** 0.5,
        worst_expert=worst,
        worst_token=token,
        layer=layer.index,
        draft=layer.draft,
        format=layer.experts_format.name,
        worst_expert_rel_err=float(each[worst]),
        worst_token_rel_err=float(rows[:, token].max()),
        weight_bound=max(bounds, default=0.0) + steps**0.5,
        output_bound=(explained / max(reference, 1e-30)) ** 0.5,
        excess=tuple(told),
    )


def _rows(opened: Opened, stored: StoredLayer, layer: MoeFacts, tokens: int) -> Tensor:
    """Typical rows of a layer, bfloat16 [T, H]: Gaussian, times the weights of the norm before the experts, rms 1."""
    generator = torch.Generator().manual_seed(1000 + layer.index)
    rows = torch.randn(tokens, layer.hidden, generator=generator)
    before = _LAYER.match(f"{stored.tensors.block}.")
    entries = opened.survey.headers.entries
    for name in _NORMS:
        entry = entries.get(f"{before[1]}.{name}.weight") if before else None
        if entry is not None and entry.shape == (layer.hidden,):
            factors = opened.weights.tensor(entry).float()
            if bool(torch.isfinite(factors).all()) and bool(factors.any()):
                rows = rows * factors
            break
    return (rows / rows.square().mean().sqrt()).bfloat16()
