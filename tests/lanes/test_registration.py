"""The entry point, in processes of their own: cheap, idempotent, silent without the flag."""

import json
import subprocess
import sys
from importlib.metadata import entry_points


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_entry_point_is_declared() -> None:
    (point,) = [p for p in entry_points(group="vllm.general_plugins") if p.name == "megamoe"]
    assert point.value == "vllm_megamoe.plugin:register"


def test_register_twice_changes_nothing_and_imports_nothing_heavy() -> None:
    """In the state in which vLLM's argument parser calls it, the plugin brings in no module of weight."""
    out = run(
        "import json, sys\n"
        "import vllm.engine.arg_utils\n"
        "from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS\n"
        "from vllm.platforms import current_platform\n"
        "before = set(sys.modules)\n"
        "from vllm_megamoe.plugin import register\n"
        "register(); first = current_platform.check_and_update_config\n"
        "register(); second = current_platform.check_and_update_config\n"
        "new = sorted(m for m in set(sys.modules) - before if not m.startswith('vllm_megamoe'))\n"
        "print(json.dumps([new, first == second, QUANTIZATION_METHODS.count('megamoe')]))\n"
    )
    new, same_hook, listed = json.loads(out.splitlines()[-1])
    assert same_hook
    assert listed == 1
    heavy = [m for m in new if m.split(".")[0] in {"torch_npu", "cann_ops_transformer", "triton", "matplotlib"}]
    heavy += [m for m in new if m.startswith(("vllm.model_executor.layers.fused_moe", "vllm.model_executor.models"))]
    assert heavy == []


def test_the_hook_delegates_without_the_flag() -> None:
    out = run(
        "from types import SimpleNamespace as N\n"
        "from vllm.platforms import current_platform\n"
        "seen = []\n"
        "type(current_platform).check_and_update_config = classmethod(lambda cls, config: seen.append(config))\n"
        "from vllm_megamoe.lanes import startup\n"
        "startup.install()\n"
        "dense = N(model_config=N(quantization=None))\n"
        "current_platform.check_and_update_config(dense)\n"
        "print(seen == [dense])\n"
    )
    assert out.splitlines()[-1] == "True"
