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
    from vllm_megamoe.lanes import startup
    from vllm_megamoe.lanes.quant_config import MegaMoeConfig

    _log_through_vllm()
    register_quantization_config(NAME)(MegaMoeConfig)
    startup.install()


class _ToVllm(logging.Handler):
    """Passes our records to vLLM's logger, whose handlers and level are configured later than plugins are loaded."""

    def emit(self, record: logging.LogRecord) -> None:
        target = logging.getLogger("vllm")
        if target.isEnabledFor(record.levelno):
            target.handle(record)


def _log_through_vllm() -> None:
    """Let our records go where vLLM's go: its logging config covers the logger `vllm` only."""
    ours = logging.getLogger("vllm_megamoe")
    if not any(isinstance(handler, _ToVllm) for handler in ours.handlers):
        ours.addHandler(_ToVllm())
        ours.setLevel(logging.DEBUG)
