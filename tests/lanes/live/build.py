"""Build models' layers on the meta device, without an engine or weights, and print what the live producer reads.

python build.py CONFIGS.json FOLDER

CONFIGS.json maps names to the content of a config.json. Prints one line `FACTS {name: {layers: [...]}}` or
`FACTS {name: {error: ...}}` for each.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from blocks import BLOCKS
from stand_ins import install, know
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.lanes.layer_facts import read_layer

# The model whose engine config holds the blocks.
HOST = "Qwen3-MoE"


def build(config: dict[str, Any], host: dict[str, Any], folder: Path, rendezvous: Path) -> list[dict[str, Any]]:
    """Facts of every MoE layer; with draft layers, vLLM's own drafter for the model is built beside it."""
    block = BLOCKS.get(config["architectures"][0])
    drafts = any(config.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    folder.mkdir()
    know(config["model_type"])
    (folder / "config.json").write_text(json.dumps(host if block else config))
    vllm_config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=128,
        enforce_eager=True,
        dtype="bfloat16",
        speculative_config={"method": "mtp", "num_speculative_tokens": 1} if drafts else None,
    ).create_engine_config()
    with set_current_vllm_config(vllm_config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
            initialize_model_parallel(1)
        with torch.device("meta"):
            if block is None:
                initialize_model(vllm_config)
            for layer in range(1, config["num_hidden_layers"]) if block else ():
                block(vllm_config, config, layer)
            if drafts:
                initialize_model(vllm_config, model_config=vllm_config.speculative_config.draft_model_config)
    text_config = vllm_config.model_config.hf_text_config
    layers = vllm_config.compilation_config.static_forward_context.values()
    runners = [layer for layer in layers if hasattr(layer, "routed_experts")]
    return [asdict(read_layer(r.routed_experts, BF16, runner=r, text_config=text_config)) for r in runners]


def main(configs_file: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    install()
    configs, place = json.loads(Path(configs_file).read_text()), Path(folder)
    for name, config in configs.items():
        try:
            found: dict[str, Any] = {"layers": build(config, configs[HOST], place / name, place / "rendezvous")}
        except Exception as error:
            # Every way to end is a result here; the test decides which one is right.
            found = {"error": f"{type(error).__name__}: {error}"}
        print("FACTS " + json.dumps({name: found}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
