"""Every expert of a checkpoint through the operator, beside the numbers that it should compute with."""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.explained import EXACT, beyond_format, matrix_bound
from vllm_megamoe.checkpoint.reading import StoredLayer
from vllm_megamoe.checkpoint.recognise import MSMODELSLIM_FILES
from vllm_megamoe.checkpoint.stored.matrix import Matrix, values_of
from vllm_megamoe.cli.checkpoint.opened import Opened, plans_of, progress
from vllm_megamoe.cli.checkpoint.run_expert import Ran, Runner, finite, weights_of
from vllm_megamoe.cli.checkpoint.run_group import Group, groups_of
from vllm_megamoe.cli.checkpoint.schema import OWN, CheckedLayer, CheckReport
from vllm_megamoe.errors import CheckpointError, ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.options import Options

_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm", "ffn_norm", "post_attention_norm")
_LAYER = re.compile(r"^(.*?(?:layers|mtp)\.\d+)\.")
_MOST_TOLD = 3
"""Sentences about one layer."""


def check(opened: Opened, original: Opened | None, options: Options, tokens: int) -> CheckReport:
    """Run every expert of every layer that was asked for, routed and shared.

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
    found, notes = [], list(opened.survey.notes)
    if not problems:
        if original is not None:
            _comparable(opened, original)
        for layer in opened.layers:
            against = None if original is None else _same_layer(layer, original)
            for group in groups_of(layer, plans[layer.name], opened.stored(layer)):
                if isinstance(group, str):
                    notes.append(group)
                    continue
                try:
                    found.append(_run(opened, group, against, tokens))
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
        notes=tuple(notes),
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
        theirs = _same_layer(mine, original).layer
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


def _run(opened: Opened, group: Group, against: StoredLayer | None, tokens: int) -> CheckedLayer:
    """All experts of a group, beside the same layer of the original; None for their own numbers."""
    runner = Runner(group.way, _rows(opened, group, tokens))
    ran: list[Ran] = []
    excess: dict[int, str] = {}
    bounds = []
    try:
        for number in progress(range(group.count), group.count, f"layer {group.layer.index}, {group.part}"):
            experts, original = finite(group.expert(number), f"{group.name}: {group.label(number)}"), None
            reference = weights_of(experts)
            if against is not None:
                original = _original(group, number, against)
                gate, up, down = map(values_of, original.values())
                reference = torch.cat([gate, up]), down
                bounds.append(_bound(group, number, original))
            ran.append(runner.run(experts, reference))
            told = list(_excess(group, number, original, ran[-1]))
            if told:
                excess[number] = f"{group.label(number)}: {'; '.join(told)}"
    finally:
        runner.close()
    return _summary(group, ran, excess, bounds)


def _original(group: Group, number: int, against: StoredLayer) -> dict[str, Matrix]:
    found, mine = group.matrices(number, against), group.matrices(number)
    shapes = [tuple(values_of(matrix).shape) for matrix in mine.values()]
    theirs = [tuple(values_of(matrix).shape) for matrix in found.values()]
    if shapes != theirs:
        raise CheckpointError(
            f"{group.name}: the original has matrices {theirs} in their place; expected {shapes}. Give the original of "
            "this checkpoint (--against)."
        )
    return found


def _excess(group: Group, number: int, original: Mapping[str, Matrix] | None, ran: Ran) -> Iterator[str]:
    if original is not None:
        for name, matrix in group.matrices(number).items():
            beyond = beyond_format(values_of(matrix), values_of(original[name]), matrix, group.form)
            if beyond is not None:
                yield f"{group.called(number, name)}: {beyond}"
    if ran.beyond_step > EXACT:
        step = f"at most a step of {group.way.use_case}'s format"
        expected = "the same numbers: this is exact" if group.way.exact else step
        yield f"its operands differ from the checkpoint's numbers; expected {expected}"
    error, bound = ran.error, ran.explained / max(float(ran.reference.sum()) ** 0.5, 1e-30)
    if not error <= bound:
        yield f"its output is off by {error:.1%}, and weights and quantised rows explain {bound:.1%}"


def _bound(group: Group, number: int, original: Mapping[str, Matrix]) -> float:
    values = {name: values_of(matrix) for name, matrix in original.items()}
    return max(matrix_bound(values[name], matrix, group.form) for name, matrix in group.matrices(number).items())


def _summary(group: Group, ran: list[Ran], excess: Mapping[int, str], bounds: list[float]) -> CheckedLayer:
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
        name=group.name,
        part=group.part,
        use_case=group.way.use_case.value,
        weight_rel_err=weights**0.5,
        output_rel_err=(output / max(reference, 1e-30)) ** 0.5,
        worst_expert=worst,
        worst_token=token,
        layer=group.layer.index,
        draft=group.layer.draft,
        format=group.form.name,
        worst_expert_rel_err=float(each[worst]),
        worst_token_rel_err=float(rows[:, token].max()),
        weight_bound=max(bounds, default=0.0) + steps**0.5,
        output_bound=(explained / max(reference, 1e-30)) ** 0.5,
        excess=tuple(told),
    )


def _rows(opened: Opened, group: Group, tokens: int) -> Tensor:
    """Typical rows of a layer, bfloat16 [T, H]: Gaussian, times the weights of the norm before the experts, rms 1."""
    generator = torch.Generator().manual_seed(1000 + group.layer.index)
    rows = torch.randn(tokens, group.hidden, generator=generator)
    before = _LAYER.match(f"{group.stored.tensors.block}.")
    entries = opened.survey.headers.entries
    for name in _NORMS:
        entry = entries.get(f"{before[1]}.{name}.weight") if before else None
        if entry is not None and entry.shape == (group.hidden,):
            factors = opened.weights.tensor(entry).float()
            if bool(torch.isfinite(factors).all()) and bool(factors.any()):
                rows = rows * factors
            break
    return (rows / rows.square().mean().sqrt()).bfloat16()
