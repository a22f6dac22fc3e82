"""The format of every checkpoint at hand, from its config files: ones that tools wrote, and published configs."""

import json
from pathlib import Path
from typing import Any

import pytest
from formats.cases import GENERATED, Case

from vllm_megamoe.checkpoint.formats import BF16, FORMATS, OWN_PREFIX, Known, Unknown
from vllm_megamoe.checkpoint.recognise import SIDE_FILES, experts_format, formats_of, section_of
from vllm_megamoe.checkpoint.stored.table import STORED
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.model import read_model

# Folder's scheme -> format of the routed experts, of the shared ones, by the tool's own words in the folder's name.
FIXTURES = {
    "deepseek_v3__base__bf16": ("bf16", "bf16"),
    "deepseek_v3__msmodelslim__w4a8_mxfp": ("msmodelslim-w4a8-mxfp", "msmodelslim-w8a8-mxfp8"),
    "deepseek_v3__msmodelslim__w8a8_dynamic": ("msmodelslim-w8a8-dynamic", "msmodelslim-w8a8-dynamic"),
    "deepseek_v3__transformers__fp8_block128_ue8m0": ("fp8-block-ue8m0", "fp8-block-ue8m0"),
    "deepseek_v3_mtp__base__bf16": ("bf16", "bf16"),
    "deepseek_v3_mtp__msmodelslim__w4a8_dynamic": ("msmodelslim-w4a8-dynamic", "msmodelslim-w8a8-dynamic"),
    "gpt_oss__base__bf16": ("bf16", None),
    "gpt_oss__openai-layout__mxfp4_blocks": ("gpt-oss-mxfp4", None),
    "minimax_m2__base__bf16": ("bf16", None),
    "minimax_m2__llmcompressor-mf__MXFP8": ("compressed-tensors-mxfp8", None),
    "mixtral__base__bf16": ("bf16", None),
    "mixtral__llmcompressor-mf__W8A8": ("compressed-tensors-w8a8", None),
    "qwen2_moe__base__bf16": ("bf16", "bf16"),
    "qwen2_moe__msmodelslim__w8a8_dynamic": ("msmodelslim-w8a8-dynamic", "msmodelslim-w8a8-dynamic"),
    "qwen3_moe__autoround__W4A16_auto_gptq": ("gptq-int4-group", None),
    "qwen3_moe__base__bf16": ("bf16", None),
    "qwen3_moe__llmcompressor__FP8_BLOCK": ("compressed-tensors-fp8-block", None),
    "qwen3_moe__llmcompressor__MXFP4": ("compressed-tensors-mxfp4", None),
    "qwen3_moe__llmcompressor__MXFP8": ("compressed-tensors-mxfp8", None),
    "qwen3_moe__llmcompressor__NVFP4": ("compressed-tensors-nvfp4", None),
    "qwen3_moe__llmcompressor__W4A16": ("compressed-tensors-w4a16-group", None),
    "qwen3_moe__llmcompressor__W4A8_channel": ("compressed-tensors-w4a8", None),
    "qwen3_moe__llmcompressor__W8A8": ("compressed-tensors-w8a8", None),
    "qwen3_moe__llmcompressor__mixed_attnW8A8_expW4A8": ("compressed-tensors-w4a8", None),
    "qwen3_moe__modelopt__MXFP8": ("modelopt-mxfp8", None),
    "qwen3_moe__msmodelslim__v0_qwen3-30b-a3b-w8a8": ("msmodelslim-w8a8-dynamic", None),
    "qwen3_moe__msmodelslim__w4a4_mxfp4": ("msmodelslim-w4a4-mxfp4", None),
    "qwen3_moe__msmodelslim__w4a8_dynamic": ("msmodelslim-w4a8-dynamic", None),
    "qwen3_moe__msmodelslim__w4a8_dynamic_pergroup": ("msmodelslim-w4a8-dynamic-group", None),
    "qwen3_moe__msmodelslim__w4a8_mxfp": ("msmodelslim-w4a8-mxfp", None),
    "qwen3_moe__msmodelslim__w8a8_dynamic": ("msmodelslim-w8a8-dynamic", None),
    "qwen3_moe__msmodelslim__w8a8_mxfp8": ("msmodelslim-w8a8-mxfp8", None),
    "qwen3_moe__transformers__fp8_block128": ("fp8-block", None),
    "qwen3_moe_ns__base__bf16": ("bf16", None),
    "qwen3_moe_ns__llmcompressor__MXFP4": ("compressed-tensors-mxfp4", None),
    "qwen3_moe_ns__llmcompressor__W8A8": ("compressed-tensors-w8a8", None),
    "qwen3_moe_ns__msmodelslim__w4a8_dynamic": ("msmodelslim-w4a8-dynamic", None),
}
_LAYER = "model.layers.1.{}"
_VL = "language_model.model.layers.1.{}"
_NVFP4 = "modelopt-nvfp4"

# Published config -> vLLM's name of an MoE block, formats of routed and shared experts, formats of a draft block.
PUBLISHED = {
    "MiniMaxAI--MiniMax-M2.5": (_LAYER, "mlp", "", "fp8-block", None, None),
    "MiniMaxAI--MiniMax-M3": ("model.layers.5.{}", "block_sparse_moe", "shared_experts", "bf16", "bf16", None),
    "Qwen--Qwen3-235B-A22B-FP8": (_LAYER, "mlp", "", "fp8-block", None, None),
    "Qwen--Qwen3.5-397B-A17B": (_VL, "mlp", "shared_expert", "bf16", "bf16", ("mtp.layers.0.mlp", "bf16")),
    "deepseek-ai--DeepSeek-V3": (
        "model.layers.9.{}", "mlp", "shared_experts", "fp8-block", "fp8-block", ("model.layers.61.mlp", "fp8-block")),
    "deepseek-ai--DeepSeek-V4-Flash": (
        _LAYER, "ffn", "shared_experts", "deepseek-v4-fp4", "fp8-block-ue8m0",
        ("model.layers.43.ffn", "deepseek-v4-fp4")),
    "sgl-project--DeepSeek-V4-Pro-FP8": (_LAYER, "ffn", "shared_experts", "fp8-block-ue8m0", "fp8-block-ue8m0", None),
    # ModelOpt turned the decoder's routed experts to NVFP4 and left the draft's and the shared ones as they were.
    "nvidia--DeepSeek-V4-Flash-NVFP4": (
        _LAYER, "ffn", "shared_experts", _NVFP4, "fp8-block-ue8m0", ("model.layers.43.ffn", "deepseek-v4-fp4")),
    "moonshotai--Kimi-K2.5": (_VL, "mlp", "shared_experts", "compressed-tensors-w4a16-group", "bf16", None),
    "moonshotai--Kimi-K3": (_VL, "block_sparse_moe", "shared_experts", "compressed-tensors-mxfp4", "bf16", None),
    "nvidia--DeepSeek-V3.1-NVFP4": (
        "model.layers.9.{}", "mlp", "shared_experts", _NVFP4, _NVFP4, ("model.layers.61.mlp", "bf16")),
    "nvidia--GLM-5.2-NVFP4": (
        "model.layers.9.{}", "mlp", "shared_experts", _NVFP4, "bf16", ("model.layers.78.mlp", "bf16")),
    "nvidia--Kimi-K2.6-NVFP4": (_VL, "mlp", "shared_experts", _NVFP4, "bf16", None),
    "nvidia--MiniMax-M2.7-NVFP4": (_LAYER, "mlp", "", _NVFP4, None, None),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": (_LAYER, "mixer", "shared_experts", _NVFP4, _NVFP4, None),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (
        _LAYER, "mixer", "shared_experts", "modelopt-fp8", "modelopt-fp8", ("mtp.layers.1.mixer", "modelopt-fp8")),
    "nvidia--Qwen3-235B-A22B-NVFP4": (_LAYER, "mlp", "", _NVFP4, None, None),
    "nvidia--Qwen3.5-397B-A17B-NVFP4": (_VL, "mlp", "shared_expert", _NVFP4, "bf16", ("mtp.layers.0.mlp", "bf16")),
    "nvidia--Qwen3.6-35B-A3B-NVFP4": (
        _VL, "mlp", "shared_expert", "modelopt-w4a16-nvfp4", "modelopt-w4a16-nvfp4", ("mtp.layers.0.mlp", "bf16")),
    "openai--gpt-oss-20b": (_LAYER, "mlp", "", "gpt-oss-mxfp4", None, None),
    "zai-org--GLM-5-FP8": (
        "model.layers.9.{}", "mlp", "shared_experts", "fp8-block", "fp8-block", ("model.layers.78.mlp", "fp8-block")),
}  # fmt: skip


def side_files(*paths: Path) -> dict[str, Any]:
    return {next(n for n in SIDE_FILES if p.name.endswith(n)): json.loads(p.read_text()) for p in paths if p.exists()}


def test_every_row_has_its_fixture(shared_dir: Path) -> None:
    assert set(FIXTURES) <= {f.name.removesuffix("__s0") for f in (shared_dir / "fixtures").iterdir() if f.is_dir()}


@pytest.mark.parametrize("folder", FIXTURES)
def test_formats_that_tools_wrote(folder: str, shared_dir: Path) -> None:
    place = shared_dir / "fixtures" / f"{folder}__s0"
    config = json.loads((place / "config.json").read_text())
    format_of = formats_of(config, side_files(*(place / name for name in SIDE_FILES)))
    layer = int(config.get("first_k_dense_replace") or 0)
    routed, shared = FIXTURES[folder]
    block = "block_sparse_moe" if "mixtral" in folder else "mlp"
    assert format_of(f"model.layers.{layer}.{block}.experts", 4) == Known(routed)
    module = "shared_expert" if "qwen" in folder else "shared_experts"
    if shared:
        assert format_of(f"model.layers.{layer}.mlp.{module}") == Known(shared)


@pytest.mark.parametrize("folder", FIXTURES)
def test_asked_by_prefix_or_by_each_projection_the_answer_is_one(folder: str, shared_dir: Path) -> None:
    place = shared_dir / "fixtures" / f"{folder}__s0"
    config = json.loads((place / "config.json").read_text())
    files = side_files(*(place / name for name in SIDE_FILES))
    layer = int(config.get("first_k_dense_replace") or 0)
    home = f"model.layers.{layer}.mlp.experts"
    names = [f"{home}.{e}.{projection}" for e in range(4) for projection in ("gate_proj", "up_proj", "down_proj")]
    assert experts_format(section_of(config), names, files) == Known(FIXTURES[folder][0])
    assert formats_of(config, files)(home, 4) == Known(FIXTURES[folder][0])


@pytest.mark.parametrize("model", PUBLISHED)
def test_formats_of_published_models(model: str, shared_dir: Path) -> None:
    place = shared_dir / "model_configs"
    config = json.loads((place / f"{model}_config.json").read_text())
    format_of = formats_of(config, side_files(place / f"{model}_hf_quant_config.json"))
    layer, block, module, routed, shared, draft = PUBLISHED[model]
    assert format_of(layer.format(f"{block}.experts"), 8, gated=block != "mixer") == Known(routed)
    if shared:
        assert format_of(layer.format(f"{block}.{module}"), gated=block != "mixer") == Known(shared)
    if draft:
        assert format_of(f"{draft[0]}.experts", 8, gated=block != "mixer") == Known(draft[1])


def test_published_models_without_a_quantisation_are_bf16(shared_dir: Path) -> None:
    plain = 0
    for file in sorted((shared_dir / "model_configs").glob("*_config.json")):
        config = json.loads(file.read_text())
        beside = file.with_name(file.name.replace("_config.json", "_hf_quant_config.json"))
        if "_hf_quant_config" not in file.name and section_of(config) is None and not beside.exists():
            plain += 1
            assert formats_of(config)("model.layers.1.mlp.experts", 8) == BF16
    assert plain > 20


def test_what_has_a_reader_loads_and_all_else_says_why_not() -> None:
    readers = set(STORED) - {"deepseek-v4-fp8"}  # of shared experts alone, which vLLM's own method loads
    foreign = {name: facts for name, facts in FORMATS.items() if not name.startswith(OWN_PREFIX)}
    assert {name for name, facts in foreign.items() if facts.loads} == readers
    assert {name for name, facts in FORMATS.items() if facts.unread} == {
        "gpt-oss-mxfp4", "msmodelslim-w4a4-mxfp4-dualscale", "auto-round-fp8",
    }  # fmt: skip


@pytest.mark.parametrize("case", GENERATED, ids=str)
def test_formats_of_generated_checkpoints(case: Case, tmp_path: Path) -> None:
    """The formats of all decoder layers are those of the table of answers, mixed layers by their own scheme."""
    folder = case.place(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    files = side_files(*(folder / name for name in SIDE_FILES))
    layers = [layer for layer in read_model(config, files).layers if not layer.draft]
    kinds = [case.kind_of(folder, layer.index) for layer in layers]
    own = {str(layer.experts_format) for layer, kind in zip(layers, kinds, strict=True) if kind == case.kind}
    others = {str(layer.experts_format) for layer, kind in zip(layers, kinds, strict=True) if kind != case.kind}
    assert own == {case.format}
    assert others == OTHER_LAYERS.get(case.name, set())


OTHER_LAYERS = {
    "ms-mixed-layers": {"msmodelslim-w8a8-dynamic"},
    "ms-unlisted-layer": {"bf16"},
    "ms-mxfp-and-mxfp4-a4": {"msmodelslim-w8a8-mxfp8"},
    "ct-mixed": {"compressed-tensors-w8a8"},
    "ct-ignored-layer": {"bf16"},
}

TWICE = {"quant_model_description.json": {"model.layers.0.mlp.experts.0.gate_proj.weight": "W8A8_DYNAMIC"}}


@pytest.mark.parametrize(
    ("section", "files", "named"),
    [
        ({"quant_method": "fp8"}, TWICE, ("quant_model_description.json", "quant_method 'fp8'")),
        (
            None,
            {**TWICE, "quant_model_description_w8a8_dynamic.json": {"version": "2"}},
            ("quant_model_description.json", "quant_model_description_w8a8_dynamic.json"),
        ),
    ],
)
def test_two_descriptions_are_an_error_that_names_both(section: Any, files: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="described twice") as error:
        formats_of({"quantization_config": section}, files)
    assert all(name in str(error.value) for name in named)


@pytest.mark.parametrize("section", [None, {"quant_method": "ascend"}])
def test_one_description_twice_is_one(section: Any) -> None:
    files = {**TWICE, "quant_model_description_w8a8_dynamic.json": TWICE["quant_model_description.json"]}
    described = "model.layers.0.mlp.experts.0.gate_proj"
    assert experts_format(section, [described], files) == Known("msmodelslim-w8a8-dynamic")


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("bf16", ("a16w16",)),
        ("compressed-tensors-w8a8", ("a8w8-int",)),
        ("msmodelslim-w4a8-dynamic", ("a8w4-int", "a8w8-int")),
        ("msmodelslim-w4a8-dynamic-group", ()),
        ("fp8-block", ()),
        ("fp8-block-ue8m0", ("a8w8-fp", "a16w16")),
        ("modelopt-mxfp8", ("a8w8-fp", "a16w16")),
        ("msmodelslim-w4a4-mxfp4", ("a4w4-fp", "a8w4-fp", "a8w8-fp", "a16w16")),
        ("deepseek-v4-fp4", ("a8w4-fp", "a4w4-fp", "a8w8-fp", "a16w16")),
        ("modelopt-nvfp4", ()),
    ],
)
def test_where_a_format_goes_exactly(name: str, exact: tuple[str, ...]) -> None:
    # The rows of the mapping matrix: a scale that is free, or shared by a group, fits no scenario exactly.
    assert FORMATS[name].use_cases == exact


def test_an_unknown_quantisation_keeps_its_name() -> None:
    found = formats_of({"quantization_config": {"quant_method": "brand-new"}})("model.layers.0.mlp.experts")
    assert found == Unknown("brand-new")
    assert not found.facts.loads
    assert found.facts.use_cases == ()
