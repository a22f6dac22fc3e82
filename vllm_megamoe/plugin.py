"""Entry point of group `vllm.general_plugins`: runs in the API server, the engine core and every worker."""

import logging

NAME = "megamoe"

logger = logging.getLogger(__name__)


def register() -> None:
    """Make `--quantization megamoe` known to vLLM.

    Cheap and idempotent; vLLM calls it several times in a deployment. It imports nothing that vLLM has not imported
    already, and a run without the flag is unchanged. Where another class stands behind the name already, that class
    stays, the log says so, and `--quantization megamoe` is an error (see lanes.startup). A vLLM that has not what is
    wrapped here runs on without the plugin, after one line that says so: `megamoe` is an unknown method there.
    """
    _log_through_vllm()
    try:
        _register()
    except (ImportError, AttributeError) as error:
        from vllm_megamoe.lanes import working

        logger.error(
            "megamoe: this vLLM is not one that the plugin can join (%s: %s); expected %s. --quantization %s does not "
            "exist in this run.",
            type(error).__name__,
            error,
            working(),
            NAME,
        )


def _register() -> None:
    from vllm.model_executor.layers import quantization

    from vllm_megamoe.lanes import last_words, startup
    from vllm_megamoe.lanes.quant_config import MegaMoeConfig

    last_words.install()
    startup.install()
    methods = quantization.QUANTIZATION_METHODS
    if NAME not in methods:
        quantization.register_quantization_config(NAME)(MegaMoeConfig)
        # vLLM takes the first method that claims a checkpoint. vllm-ascend's claims those that name no method, whatever
        # the user said, and may be registered before ours.
        methods.remove(NAME)
        methods.insert(0, NAME)
        return
    # A method of vLLM's own stands in the list alone.
    holder = quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG.get(NAME)
    if holder is not MegaMoeConfig:
        logger.error("%s", startup.namesake(holder))


class _ToVllm(logging.Handler):
    """Passes our records to vLLM's handlers, which are configured later than plugins are loaded, with their level.

    To these alone: what stands above them (the root, where VLLM_CONFIGURE_LOGGING=0 leaves logging to the user), our
    own logger reaches too, and would have each line twice.
    """

    def emit(self, record: logging.LogRecord) -> None:
        vllm = logging.getLogger("vllm")
        if not vllm.isEnabledFor(record.levelno) or not vllm.filter(record):
            return
        for handler in vllm.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


def _log_through_vllm() -> None:
    """Let our records go where vLLM's go: its logging config covers the logger `vllm` only."""
    ours = logging.getLogger("vllm_megamoe")
    if not any(isinstance(handler, _ToVllm) for handler in ours.handlers):
        ours.addHandler(_ToVllm())
        ours.setLevel(logging.DEBUG)
