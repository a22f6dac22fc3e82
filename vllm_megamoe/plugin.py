"""Entry point of group `vllm.general_plugins`: runs in the API server, the engine core and every worker."""

import logging

NAME = "megamoe"

logger = logging.getLogger(__name__)


def register() -> None:
    """Make `--quantization megamoe` known to vLLM.

    Cheap and idempotent; vLLM calls it several times in a deployment. It imports nothing that vLLM has not imported
    already, and a run without the flag is unchanged.
    """
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if NAME in QUANTIZATION_METHODS:
        return
    from vllm_megamoe.lanes import platform_hook
    from vllm_megamoe.quant_config import MegaMoeConfig

    _share_log_handlers()
    register_quantization_config(NAME)(MegaMoeConfig)
    platform_hook.install()


def _share_log_handlers() -> None:
    """Let our records go where vLLM's go: its logging config covers the logger `vllm` only."""
    ours, theirs = logging.getLogger("vllm_megamoe"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        for handler in theirs.handlers:
            ours.addHandler(handler)
        ours.setLevel(theirs.level)
        ours.propagate = False
