"""What loading takes of an engine's process: the model itself and a part of one layer.

The bound is the issue's: anonymous memory above the start is at most the rank's final size and 1.2 of the largest
layer. A DeepSeek-V2 of hidden 1024 with 64 experts of width 512 in each of two layers, 0.2 GiB a layer in BF16, and two
shared experts, fused into the call where it takes them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from bench.loading import Peak
from engine.engines import EAGER, MEGAMOE

from vllm_megamoe.testing.checkpoints import write_checkpoint
from vllm_megamoe.testing.engines import EngineRanks, engine, model_of

pytestmark = [pytest.mark.engine, pytest.mark.full]

LARGE = {"n_routed_experts": 64, "n_group": 8, "moe_intermediate_size": 512, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint("deepseek_v2", "bf16", tmp_path_factory.mktemp("large") / "model", **LARGE))


@pytest.fixture
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRanks]:
    """A process that has loaded nothing before: what an earlier engine freed would not count."""
    made = EngineRanks(1, tmp_path_factory.mktemp("rank"))
    yield made
    made.stop()


def loaded(arguments: dict[str, Any], folder: str) -> dict[str, Any]:
    """Bytes above the start while vLLM loads the model, and bytes of what it has then."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    peak: list[int] = []
    load_model = CPUModelRunner.load_model

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        with Peak() as memory:
            load_model(self, *args, **kwargs)
        peak.append(memory.peak - memory.before)

    CPUModelRunner.load_model = watched
    try:
        with engine({"model": folder, **arguments}) as llm:
            model = model_of(llm)
            layers = [module.mega_moe for module in model.modules() if hasattr(module, "mega_moe")]
            others = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
            held = [layer.operands.nbytes for layer in layers]
            fused = [layer.shared.nbytes for layer in layers if layer.shared is not None]
            return {"peak": peak, "others": others, "layers": held, "fused": fused}
    finally:
        CPUModelRunner.load_model = load_model


@pytest.mark.parametrize(("use_case", "fuse"), [("a16w16", "on"), ("a8w8-fp", "on"), ("a8w8-int", "off")])
def test_an_engines_peak_is_the_model_and_a_part_of_a_layer(
    use_case: str, fuse: str, large: str, rank: EngineRanks
) -> None:
    """The operator has no INT8 shared experts beside its own."""
    options = {"use_case": use_case, "requant": "allow", "fuse_shared_experts": fuse}
    arguments = {**MEGAMOE, **EAGER, "additional_config": {"megamoe": options}}
    (found,) = rank.run(partial(loaded, arguments), [(large,)], 600.0)
    (peak,), layers = found["peak"], found["layers"]
    assert (len(layers), len(found["fused"])) == (2, 2 if fuse == "on" else 0)
    final = sum(layers) + sum(found["fused"]) + found["others"]
    assert peak <= final + 1.2 * max(layers), found
    # The measure sees what is held.
    assert peak >= sum(layers), found
