"""A draft (MTP) layer of another operator configuration runs on a communicator of its own, beside the main model's."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine.engines import EAGER, MEGAMOE, TP2, Engines
from engine.steps import greedy
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.engine

QUANTISED, ORIGINAL = "deepseek_v3_mtp__msmodelslim__w4a8_dynamic__s0", "deepseek_v3_mtp__base__bf16__s0"
DRAFT = "model.layers.2.mlp.experts."
PROMPTS = [[5, 9, 200, 31], [77, 12], [100, 101, 102, 103, 104, 105]]


def tensors_of(folder: Path) -> dict[str, Any]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, shared_dir: Path) -> str:
    """msModelSlim's W4A8 checkpoint whose draft layer's experts are left as they were, and so are not listed."""
    folder, source = tmp_path_factory.mktemp("draft") / "model", shared_dir / "fixtures" / QUANTISED
    folder.mkdir()
    kept = {name: t for name, t in tensors_of(source).items() if not name.startswith(DRAFT)}
    plain = tensors_of(shared_dir / "fixtures" / ORIGINAL)
    plain = {name: t for name, t in plain.items() if name.startswith(DRAFT)}
    assert plain
    save_file(kept | plain, folder / "model.safetensors", {"format": "pt"})
    described = json.loads((source / "quant_model_description.json").read_text())
    described = {name: kind for name, kind in described.items() if not name.startswith(DRAFT)}
    (folder / "quant_model_description.json").write_text(json.dumps(described))
    shutil.copy(source / "config.json", folder / "config.json")
    return str(folder)


def buffers(llm: Any) -> list[tuple[str, int, str]]:
    """Each layer's buffer on this rank: its name, the buffer's dispatch mode, and the name of its group."""
    from vllm_megamoe.layer.buffers import handles

    return [(h.layer, h.buffer.dispatch_quant_mode, h.buffer.group.group_name) for h in handles()]


@pytest.mark.full
def test_a_draft_layer_has_its_own_buffer_and_group(mixed: str, engines: Engines) -> None:
    """Both ranks serve the same tokens over two communicators.

    Tokens are not compared with those of a server that drafts nothing: with latent attention on a CPU vLLM 0.32 gives
    other ones while it drafts, without this plugin too.
    """
    drafting = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    model = {"model": mixed, **MEGAMOE, **TP2, **EAGER, "dtype": "bfloat16", "max_model_len": 64}
    found = engines.run(model | drafting, [partial(greedy, prompts=PROMPTS, max_tokens=12), buffers])
    for tokens, held in found:
        assert tokens == found[0][0]
        assert [len(more) for more in tokens] == [12, 12, 12]
        assert [(name, mode) for name, mode, _ in held] == [
            ("model.layers.1.mlp.experts", 2),
            ("model.layers.2.mlp.experts", 0),
        ]
        assert len({group for *_, group in held}) == 2
