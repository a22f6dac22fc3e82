"""The package's errors.

Every message says where it happened, what came, what was expected and what to do. Where a caller would
expect a built-in (a rejected argument, a broken peer), the class derives from that built-in too.
"""


class MegaMoeError(Exception):
    """Base of everything that this package raises on purpose."""


class ConfigError(MegaMoeError):
    """The command line, the options or the model's config ask for something that cannot be served.

    Not a ValueError: vLLM's config classes are pydantic dataclasses, which would bury a ValueError raised during their
    construction under a dump of the whole config.
    """


class CheckpointError(MegaMoeError, ValueError):
    """A checkpoint's tensors have another name, shape, dtype or value than their format promises."""


class LayoutError(MegaMoeError, ValueError):
    """A tensor cannot be put into, or read from, an operator layout."""


class OperatorError(MegaMoeError, ValueError):
    """A buffer or a call that the operator rejects."""


class PeerError(MegaMoeError, RuntimeError):
    """Another rank of the communicator is missing, out of step, or was set up differently."""
