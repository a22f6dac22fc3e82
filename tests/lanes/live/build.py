"""Build models' layers on the meta device, without an engine or weights, and print what the live producer reads.

python build.py CONFIGS.json FOLDER

CONFIGS.json maps names to the content of a config.json. Prints one line `FACTS {name: {...}}` for each, with `layers`
(facts of each MoE layer with its runner), `bare` (without), and `carried`: what came of building it with our method, as
the names of the layers that hold the plan which their config stage has made, or the words of a refusal. A model that
cannot be built has `error` alone.
"""

import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from blocks import BLOCKS
from stand_ins import install, know
from vllm.config import ParallelConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe import layer as fused_moe
from vllm.model_executor.model_loader.utils import initialize_model

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.layer_facts import read_layer

# The model whose engine config holds the blocks.
HOST = "Qwen3-MoE"

ROWS: list[bool] = []
"""What each layer built so far says of its rows where tensor and data parallelism are both on."""


def watch_rows() -> None:
    """Pretend to models that both are on, and record which of them split their rows; the layers themselves are not."""
    make = fused_moe.make_parallel_config

    def recording(is_sequence_parallel: bool, **given: Any) -> Any:
        ROWS.append(is_sequence_parallel)
        return make(is_sequence_parallel=False, **given)

    fused_moe.make_parallel_config = recording
    ParallelConfig.use_sequence_parallel_moe = property(lambda self: True)


def config_of(folder: Path, drafts: bool, quantization: str | None) -> Any:
    """The engine config of a model, as `vllm serve` makes it; ours comes out of its config stage with a plan."""
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=128,
        enforce_eager=True,
        dtype="bfloat16",
        quantization=quantization,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1} if drafts else None,
    ).create_engine_config()


@contextmanager
def inside(vllm_config: Any, rendezvous: Path) -> Iterator[None]:
    """Where vLLM builds a model: its config is the current one, its groups exist, and tensors hold no memory."""
    with set_current_vllm_config(vllm_config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
            initialize_model_parallel(1)
        with torch.device("meta"):
            yield


def runners_of(vllm_config: Any) -> list[Any]:
    layers = vllm_config.compilation_config.static_forward_context.values()
    return [layer for layer in layers if hasattr(layer, "routed_experts")]


def whole(vllm_config: Any, drafts: bool) -> list[Any]:
    """The runners of a whole model; with draft layers, vLLM's own drafter for the model is built beside it."""
    initialize_model(vllm_config)
    if drafts:
        initialize_model(vllm_config, model_config=vllm_config.speculative_config.draft_model_config)
    return runners_of(vllm_config)


def carried(folder: Path, drafts: bool, rendezvous: Path) -> list[str] | str:
    """Build with our method, from a config that went through a pickle as on its way to a worker."""
    try:
        made = config_of(folder, drafts, "megamoe")
    except ConfigError as error:
        return str(error)
    vllm_config = pickle.loads(pickle.dumps(made))
    plans = made.quant_config.carried.plan.layers
    confirmed = []
    with inside(vllm_config, rendezvous):
        for runner in whole(vllm_config, drafts):
            method = runner.routed_experts.quant_method
            early, late = method.plan, method.complete_plan()
            if early is late and early in plans:
                confirmed.append(runner.layer_name)
    return confirmed


def build(config: dict[str, Any], host: dict[str, Any], folder: Path, rendezvous: Path) -> dict[str, Any]:
    """All that is printed of one model."""
    block = BLOCKS.get(config["architectures"][0])
    drafts = any(config.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    folder.mkdir()
    know(config["model_type"])
    (folder / "config.json").write_text(json.dumps(host if block else config))
    ROWS.clear()
    vllm_config = config_of(folder, drafts, None)
    with inside(vllm_config, rendezvous):
        for layer in range(1, config["num_hidden_layers"]) if block else ():
            block(vllm_config, config, layer)
        runners = runners_of(vllm_config) if block else whole(vllm_config, drafts)
    text_config = vllm_config.model_config.hf_text_config
    return {
        "layers": [asdict(read_layer(r.routed_experts, BF16, runner=r, text_config=text_config)) for r in runners],
        "bare": [asdict(read_layer(r.routed_experts, BF16, text_config=text_config)) for r in runners],
        "splits_rows": sorted(set(ROWS)),
        "carried": "a block alone" if block else carried(folder, drafts, rendezvous),
    }


def main(configs_file: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    install()
    watch_rows()
    configs, place = json.loads(Path(configs_file).read_text()), Path(folder)
    for name, config in configs.items():
        try:
            found = build(config, configs[HOST], place / name, place / "rendezvous")
        except Exception as error:
            # Every way to end is a result here; the test decides which one is right.
            found = {"error": f"{type(error).__name__}: {error}"}
        print("FACTS " + json.dumps({name: found}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
