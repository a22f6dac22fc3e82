"""A folder's files against the layers that are served from it: the survey as server and command line ask it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_megamoe.checkpoint.comparison import ExpectedLayer
from vllm_megamoe.checkpoint.headers import has_weights, read_headers
from vllm_megamoe.checkpoint.recognise import MSMODELSLIM_FILES, SideFiles, section_of
from vllm_megamoe.checkpoint.survey import Survey, survey
from vllm_megamoe.plan.facts import MoeFacts


def survey_served(
    folder: Path, config: Mapping[str, Any], side_files: SideFiles, layers: Iterable[MoeFacts], num_layers: int
) -> Survey | None:
    """What lies in a folder that is served, and what of it is malformed; None for a folder without weights.

    Every one of the layers must be there. Args: as `survey_folder`.
    """
    if not has_weights(folder):
        return None
    return _survey(folder, config, side_files, [expected_layer(layer, num_layers) for layer in layers])


def survey_folder(
    folder: Path, config: Mapping[str, Any], side_files: SideFiles, layers: Iterable[MoeFacts], num_layers: int
) -> Survey:
    """Read the headers of a folder and compare them with the layers; a draft layer may be absent.

    Args:
        folder: of the checkpoint.
        config: config.json.
        side_files: the files beside it that describe a quantisation, by name.
        layers: to look at.
        num_layers: of the decoder, from which on some files number draft layers anew.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    expected = [replace(expected_layer(layer, num_layers), required=not layer.draft) for layer in layers]
    return _survey(folder, config, side_files, expected)


def _survey(
    folder: Path, config: Mapping[str, Any], side_files: SideFiles, expected: Sequence[ExpectedLayer]
) -> Survey:
    described = next(((name, side_files[name]) for name in MSMODELSLIM_FILES if side_files.get(name)), ("", {}))
    return survey(read_headers(folder), expected, section_of(config), described)


def expected_layer(layer: MoeFacts, num_layers: int) -> ExpectedLayer:
    """What the files must hold for a layer."""
    number = layer.index
    ids = [(False, number), *([(True, number - num_layers)] if layer.draft and number >= num_layers else [])]
    shared = layer.shared
    return ExpectedLayer(
        name=layer.name,
        ids=tuple(ids),
        experts=layer.num_experts,
        hidden=layer.hidden,
        intermediate=layer.intermediate_hidden,
        form=layer.experts_format,
        # Experts without a gate multiply up and down alone (vLLM's `..._no_mul`).
        gated=not layer.activation.name.endswith("_no_mul"),
        has_bias=layer.has_bias,
        shared=None if shared is None else (shared.hidden, shared.intermediate_hidden, shared.experts_format),
    )
