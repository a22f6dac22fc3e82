"""How a pytest that a test starts gets this package's plugin."""

from importlib.metadata import entry_points


def plugin_arguments() -> list[str]:
    """Nothing where the package is installed with its entry point; the module's name in an older environment."""
    return [] if entry_points(group="pytest11", name="megamoe") else ["-p", "vllm_megamoe.testing.plugin"]
