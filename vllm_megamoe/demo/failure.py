"""The one kind of failure that the demo reports without a traceback."""

from vllm_megamoe.errors import MegaMoeError


class DemoError(MegaMoeError, RuntimeError):
    """A step of the demo went wrong. The message says which, what happened and what to do."""
