"""msModelSlim: a flat file that gives the type of every tensor; what it does not list is FLOAT."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise.facts import BF16
from vllm_megamoe.checkpoint.recognise.names import Names


def reader(description: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection."""
    # The file's version tells how int4 codes are packed; without it, or with another, one code fills a byte.
    old = str(description.get("version", "")) != "1.0.0"

    def read(names: Names) -> str:
        name = next((name for name in names if f"{name}.weight" in description), None)
        kind = "FLOAT" if name is None else str(description[f"{name}.weight"])
        if kind == "FLOAT":
            return BF16
        form = "msmodelslim-" + kind.lower().replace("_", "-")
        if kind == "W4A8_DYNAMIC":
            form += "-old" if old else ""
            form += "-group" if f"{name}.weight_scale_second" in description else ""
        return form

    return read
