"""What the quantisation config hands on to the checkpoint's own one, which keeps every layer without experts."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vllm_megamoe.lanes.quant_config import MegaMoeConfig

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def test_the_inner_config_knows_which_modules_vllm_fuses() -> None:
    """By reference, as vLLM hands it over: a model may add to it while it is built (configure_quant_config)."""
    config = MegaMoeConfig.from_config(FP8)
    mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    config.packed_modules_mapping = mapping
    assert config.inner is not None
    assert config.inner.packed_modules_mapping is mapping
    assert config.packed_modules_mapping is mapping


def test_the_inner_config_gets_the_models_renames() -> None:
    config = MegaMoeConfig.from_config(FP8)
    seen: list[Any] = []
    config.inner.apply_vllm_mapper = seen.append  # type: ignore[union-attr,method-assign]
    mapper = object()
    config.apply_vllm_mapper(mapper)
    assert seen == [mapper]


def test_bf16_experts_have_no_inner_config() -> None:
    config = MegaMoeConfig.from_config({"quant_method": "megamoe"})
    config.packed_modules_mapping = {}
    assert config.inner is None


def test_vllm_finds_the_files_of_msmodelslim(tmp_path: Path) -> None:
    """Their index has another name than vLLM's, and then vLLM leaves out none of them."""
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    names = [f"quant_model_weights-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name in names:
        save_file({name: torch.zeros(1)}, tmp_path / name)
    index = {"metadata": {}, "weight_map": {name: name for name in names}}
    (tmp_path / "quant_model_weights.safetensors.index.json").write_text(json.dumps(index))
    loader = DefaultModelLoader(LoadConfig())
    source = DefaultModelLoader.Source(str(tmp_path), None)
    assert sorted(name for name, _ in loader._get_weights_iterator(source)) == names
