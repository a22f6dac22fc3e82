"""Our name registered after vllm-ascend's classes, and a checkpoint that the first of those would claim."""

from typing import TYPE_CHECKING, Any

from contract.support import engine

if TYPE_CHECKING:
    from contract.support.rank import Rank

SECTION = {"group_size": 0, "model_quant_type": "W8A8_DYNAMIC"}
"""A `quantization_config` that names no method: vllm-ascend's override answers "ascend" to it, whatever was asked."""


def run(rank: "Rank") -> dict[str, Any]:
    """The order of methods, and what the flag has become."""
    from vllm.model_executor.layers import quantization
    from vllm.plugins import load_general_plugins
    from vllm_ascend.quantization.configs import modelslim_config

    from vllm_megamoe import plugin

    load_general_plugins()
    theirs = modelslim_config.AscendModelSlimConfig.override_quantization_method(SECTION, plugin.NAME)
    quantization.QUANTIZATION_METHODS.remove(plugin.NAME)
    del quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG[plugin.NAME]
    plugin.register()
    folder = engine.Model(changes={"quantization_config": SECTION}).write(rank.own_folder("order"))
    answer = {"theirs": theirs, "order": list(quantization.QUANTIZATION_METHODS), "said": ""}
    try:
        config = engine.make_config(folder, quantization=plugin.NAME)
    except Exception as error:  # whose words they are is judged by the test
        return answer | {"said": str(error)}
    return answer | {"quantization": config.model_config.quantization}
