"""What the asserts pass and what they find; the numbers come from the generators, which read nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families.compare import BOUND, LOGIT_STD
from safetensors.torch import load_file, save_file

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.testing import assert_layer_matches, assert_same_logprobs
from vllm_megamoe.testing.asserts import ACTIVATIONS, float32_bound
from vllm_megamoe.testing.checkpoints import TinyCheckpoint, write_checkpoint
from vllm_megamoe.testing.formats.table import FORMATS
from vllm_megamoe.testing.tiny_models import TINY_MODELS

SMALL = {"hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 4, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyCheckpoint]:
    made: dict[str, TinyCheckpoint] = {}

    def get(form: str) -> TinyCheckpoint:
        if form not in made:
            made[form] = write_checkpoint("qwen3_moe", form, tmp_path_factory.mktemp("tiny") / form, **SMALL)
        return made[form]

    return get


def rows(seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(count, 32, generator=random).log_softmax(-1) for count in (3, 5)]


def test_the_bound_of_two_float32_engines_is_the_families_one() -> None:
    assert float32_bound(hidden=1024, layers=3, spread=LOGIT_STD) == pytest.approx(BOUND, rel=1e-12)


def test_what_is_within_the_bound_passes() -> None:
    expected = rows()
    assert_same_logprobs(expected, [each + BOUND * 0.9 for each in expected])
    assert_same_logprobs(expected, [each + 0.5 * ACTIVATIONS["a8w8-int"] for each in expected], use_case="a8w8-int")


def test_what_is_beyond_it_is_named_with_prompt_and_token() -> None:
    found = rows()
    found[1][4, 7] += 0.25
    with pytest.raises(AssertionError, match=r"0\.25, expected at most .*the worst is prompt 1, token 4"):
        assert_same_logprobs(rows(), found)
    with pytest.raises(AssertionError, match="five likeliest tokens, experts as a8w8-int"):
        assert_same_logprobs(rows(), rows(1), use_case="a8w8-int")


@pytest.mark.parametrize("wrong", ["shape", "count", "nan", "none"])
def test_what_cannot_be_compared_is_no_pass(wrong: str) -> None:
    found = rows()
    expected = [] if wrong == "none" else rows()
    if wrong == "shape":
        found[0] = found[0][:2]
    if wrong in ("count", "none"):
        found.pop()
    if wrong == "nan":
        found[1][2, 3] = float("nan")
    if wrong == "none":
        found.clear()
    with pytest.raises(AssertionError, match=r"expected"):
        assert_same_logprobs(expected, found)


@pytest.mark.parametrize("form", ["bf16", "msmodelslim-w4a8", "compressed-tensors-mxfp4", "fp8-block-ue8m0"])
def test_a_layer_of_sound_numbers_matches(form: str, checkpoint: Callable[[str], TinyCheckpoint]) -> None:
    assert_layer_matches(checkpoint(form), 0)


def test_a_lossy_use_case_matches_by_consent(checkpoint: Callable[[str], TinyCheckpoint]) -> None:
    for use_case in ("a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp"):
        assert_layer_matches(checkpoint("bf16"), 0, use_case=use_case)


def damaged(source: TinyCheckpoint, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    shutil.copytree(source, folder)
    (place,) = folder.glob("*.safetensors")
    tensors = load_file(place)
    change(tensors)
    save_file(tensors, place, {"format": "pt"})
    return folder


def swap(tensors: dict[str, torch.Tensor], one: str, other: str) -> None:
    for name in [name for name in tensors if one in name]:
        twin = name.replace(one, other)
        tensors[name], tensors[twin] = tensors[twin], tensors[name]


DAMAGES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], None], str]] = {
    "experts exchanged": (lambda t: swap(t, "experts.1.", "experts.2."), r"expert 1, gate_proj"),
    "halves exchanged": (lambda t: swap(t, "experts.3.gate_proj", "experts.3.up_proj"), r"expert 3, gate_proj"),
    "a scale moved": (
        lambda t: t.update({n: v.roll(1, 0) for n, v in t.items() if n.endswith("experts.2.down_proj.weight_scale")}),
        r"expert 2, down_proj",
    ),
    "one code": (
        lambda t: t["model.layers.0.mlp.experts.0.up_proj.weight"][5, 7].add_(9),
        r"expert 0, up_proj: .* the worst is row 5",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_named(kind: str, checkpoint: Callable[[str], TinyCheckpoint], tmp_path: Path) -> None:
    change, told = DAMAGES[kind]
    source = checkpoint("msmodelslim-w8a8")
    with pytest.raises(AssertionError, match=told):
        assert_layer_matches(damaged(source, tmp_path / "damaged", change), 0, source)


def test_numbers_of_the_callers_own_and_an_original(
    checkpoint: Callable[[str], TinyCheckpoint], tmp_path: Path
) -> None:
    """A tool that rounds half a step too far is found beside the original, and one that rounds plainly is not."""
    original = checkpoint("bf16")
    for shift, sound in ((0.0, True), (8.0, False)):
        folder = tmp_path / f"shift{shift}"
        quantise_w8a8(original.folder, folder, shift)
        if sound:
            assert_layer_matches(folder, 0, original.folder)
        else:
            with pytest.raises(AssertionError, match=r"expert 0, gate_proj: .* is off by"):
                assert_layer_matches(folder, 0, original.folder)


def quantise_w8a8(source: Path, folder: Path, shift: float) -> None:
    """msModelSlim's W8A8_DYNAMIC of the experts, by plain rounding; all other layers stay."""
    shutil.copytree(source, folder)
    tensors, types = load_file(folder / "model.safetensors"), {}
    for name, weight in list(tensors.items()):
        types[name] = "FLOAT"
        if ".experts." in name:
            scale = weight.float().abs().amax(1, keepdim=True) / 127
            codes = (weight.float() / scale + shift).round().clamp(-128, 127).to(torch.int8)
            made = {name: codes, f"{name}_scale": scale, f"{name}_offset": torch.zeros_like(scale)}
            tensors |= made
            types |= dict.fromkeys(made, "W8A8_DYNAMIC")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "quant_model_description.json").write_text(json.dumps({"version": "1.0.0", **types}))


def test_what_is_not_there_is_said(checkpoint: Callable[[str], TinyCheckpoint], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no experts in layer 9; expected one of \[0\]"):
        assert_layer_matches(checkpoint("bf16").folder, 9, checkpoint("bf16"))
    with pytest.raises(ConfigError, match=r"expected .*the folder of the original"):
        assert_layer_matches(checkpoint("bf16"), 0, tmp_path)
    with pytest.raises(ConfigError, match="a8w8-fp from msmodelslim-w8a8-dynamic experts is lossy"):
        assert_layer_matches(checkpoint("msmodelslim-w8a8"), 0, profile="950@9.1")


@pytest.mark.full
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_holds_what_it_means(form: str, tmp_path: Path) -> None:
    made = write_checkpoint("qwen3_moe", form, tmp_path / form, **SMALL)
    assert_layer_matches(made, 0, use_case="auto" if form in EXACT else "a16w16")


EXACT = [
    name
    for name, form in FORMATS.items()
    if form.scheme is None or form.scheme.kind in ("int8", "int4", "mxfp8", "mxfp4", "mxfp4-a4", "fp8-block-ue8m0")
]


@pytest.mark.full
@pytest.mark.parametrize("family", TINY_MODELS)
def test_every_family_can_be_quantised(family: str, tmp_path: Path) -> None:
    made = write_checkpoint(family, "msmodelslim-w8a8", tmp_path / family)
    for layer in made.layers:
        assert_layer_matches(made, layer, profile="a3@9.1")
