"""The extension that vllm-ascend loads ahead of the first collective; here there is nothing to compile."""

from asked import note


class CommContextManager:
    """Asked to load itself, once."""

    @classmethod
    def _ensure_loaded(cls) -> None:
        note("cann_ops_transformer.ops.comm_context.CommContextManager._ensure_loaded()")
