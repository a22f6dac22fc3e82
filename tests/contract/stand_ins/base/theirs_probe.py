"""A pytest plugin for runs of vllm-ascend's tests: which torch_npu they met, and what they asked it for in vain."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

SIMULATED, REPORT = "CONTRACT_SIMULATED", "CONTRACT_PROBE"


def pytest_sessionfinish() -> None:
    """Write the report, after the last test."""
    package = sys.modules["torch_npu"]
    met = getattr(package, "__version__", "a mock")
    asked = import_module("vllm_megamoe.simulator.install.package").asked if os.environ.get(SIMULATED) else ()
    product = sys.modules["vllm_ascend._build_info"].__device_type__
    answer = {"torch_npu": met, "torch.npu": type(sys.modules["torch"].npu).__name__, "product": product}
    Path(os.environ[REPORT]).write_text(json.dumps(answer | {"asked": sorted(asked)}))
