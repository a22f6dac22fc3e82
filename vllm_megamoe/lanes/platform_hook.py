"""The earliest point where vLLM shows a plugin the parallel config and the options together.

That is the platform's `check_and_update_config`, which VllmConfig calls at the end of its construction, in the process
that the user started and before any worker exists. vLLM offers no registration for it, so the method is wrapped once;
without `--quantization megamoe` the wrapper only delegates.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from vllm.platforms import current_platform

from vllm_megamoe.checkpoint.recognise import BF16, formats_of, section_of, surely_quantised
from vllm_megamoe.lanes.cpu_environment import set_cpu_defaults
from vllm_megamoe.lanes.engine_facts import read_engine
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.read_config import is_known, read_layers
from vllm_megamoe.plan.screen import render

logger = logging.getLogger(__name__)

_MARK = "_vllm_megamoe_wrapped"


def install() -> None:
    """Wrap the platform's hook; a second call does nothing."""
    platform = type(current_platform)
    original: Callable[[Any], None] = current_platform.check_and_update_config
    if getattr(platform, _MARK, False):
        return

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        if _ours(vllm_config):
            before_platform(vllm_config)
        original(vllm_config)

    platform.check_and_update_config = classmethod(check_and_update_config)
    setattr(platform, _MARK, True)


def before_platform(vllm_config: Any) -> None:
    """Plan the whole model, show the plan and prepare the environment.

    Raises:
        ConfigError: with every violated rule, before an engine process or a weight is touched.
    """
    options, wrong = Options.read(vllm_config.additional_config)
    if not current_platform.is_cpu():
        wrong.append(
            f"platform: {current_platform.device_name}; wanted cpu. This version has no lane for another platform yet: "
            "it would run the operator with rows that the platform has not split. Drop --quantization megamoe."
        )
    config = vllm_config.model_config.hf_config.to_dict()
    layers = read_layers(config, _format_of(config, vllm_config.quant_config.side_files))
    # A checkpoint's draft layers are loaded only where the user asked for speculation.
    served = [layer for layer in layers if not layer.draft or vllm_config.speculative_config is not None]
    plan = make_plan(read_engine(vllm_config), served, options, wrong)
    if plan.layers:
        logger.info("%s", render(plan))
    set_cpu_defaults(vllm_config.parallel_config)


def _format_of(config: Mapping[str, Any], side_files: Mapping[str, Mapping[str, Any]]) -> Callable[[str], str]:
    """The formats by name where the names are sure; else only what no naming style leaves out counts as quantised."""
    if is_known(config):
        return formats_of(config, side_files)
    text = config.get("text_config") or config
    sure = surely_quantised(section_of(config), int(text.get("num_hidden_layers") or 1), side_files)
    return lambda name: sure or BF16


def _ours(vllm_config: Any) -> bool:
    model_config = vllm_config.model_config
    return model_config is not None and model_config.quantization == "megamoe"
