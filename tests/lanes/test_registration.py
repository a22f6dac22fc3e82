"""The entry point, in processes of their own: cheap, idempotent, silent without the flag, no namesake hides it."""

import json
import logging
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
from lanes.live.tiny_configs import TINY

from vllm_megamoe import plugin


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


class Lines(logging.Handler):
    """Remembers what it was given."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@pytest.mark.parametrize(("level", "passed"), [(logging.INFO, True), (logging.WARNING, False)])
def test_vllms_log_level_holds_for_our_lines(level: int, passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM_LOGGING_LEVEL sets the level of the logger `vllm`; ours goes through it."""
    target, heard = logging.getLogger("vllm"), Lines()
    monkeypatch.setattr(target, "handlers", [heard])
    monkeypatch.setattr(target, "level", level)
    target.manager._clear_cache()  # type: ignore[attr-defined]
    plugin._ToVllm().emit(logging.LogRecord("vllm_megamoe.plan", logging.INFO, "", 0, "a line", (), None))
    target.manager._clear_cache()  # type: ignore[attr-defined]
    assert heard.seen == ["a line"] * passed


@pytest.mark.parametrize("configured", [True, False], ids=["by vLLM", "by the user"])
def test_a_line_comes_once_whoever_configures_logging(configured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM_CONFIGURE_LOGGING=0 leaves vLLM's logger without a handler, and its lines go up to the root."""
    vllm, ours, root = (logging.getLogger(name) for name in ("vllm", "vllm_megamoe", None))
    theirs, above, deaf = Lines(), Lines(), Lines(logging.ERROR)
    for one, handlers in ((vllm, [theirs, deaf] if configured else []), (ours, []), (root, [above])):
        monkeypatch.setattr(one, "handlers", handlers)
        monkeypatch.setattr(one, "propagate", one is not vllm or not configured)
        monkeypatch.setattr(one, "level", logging.INFO)
        one.manager._clear_cache()  # type: ignore[attr-defined]
    plugin._log_through_vllm()
    plugin._log_through_vllm()
    logging.getLogger("vllm_megamoe.lanes").info("told")
    logging.getLogger("vllm_megamoe.lanes").debug("below vLLM's level")
    assert theirs.seen == (["told"] if configured else [])
    assert deaf.seen == []
    assert above.seen.count("told") == 1
    for one in (vllm, ours, root):
        one.manager._clear_cache()  # type: ignore[attr-defined]


NAMESAKE = """
import json, logging, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers import quantization
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm_megamoe import plugin

class Theirs(QuantizationConfig):
    get_name = lambda self: "megamoe"
    get_supported_act_dtypes = lambda self: [__import__("torch").bfloat16]
    get_min_capability = classmethod(lambda cls: 0)
    get_config_filenames = staticmethod(lambda: [])
    from_config = classmethod(lambda cls, config: cls())
    get_quant_method = lambda self, layer, prefix: None

class Heard(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

logging.getLogger("vllm_megamoe").addHandler(Heard(logging.ERROR))

def ends(model, flag):
    try:
        made = EngineArgs(model=model, skip_tokenizer_init=True, max_model_len=128, quantization=flag)
        return type(made.create_engine_config().quant_config).__name__
    except Exception as error:
        return f"{type(error).__name__}: {error}"

plain, named = sys.argv[1:]
found = {"ours": ends(plain, "megamoe"), "silent": list(Heard.lines)}
quantization.register_quantization_config("megamoe")(Theirs)
found |= {"flag": ends(plain, "megamoe"), "no flag": ends(plain, None), "their checkpoint": ends(named, None)}
plugin.register()
found["theirs before ours"] = Heard.lines.pop()
del quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG["megamoe"]
plugin.register()
found["vLLM's own"] = Heard.lines.pop()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def namesake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes of a class of another package behind our name."""
    place = tmp_path_factory.mktemp("namesake")
    for name, more in {"plain": {}, "named": {"quantization_config": {"quant_method": "megamoe"}}}.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(TINY["Qwen3-MoE"] | more))
    out = subprocess.run(
        [sys.executable, "-c", NAMESAKE, str(place / "plain"), str(place / "named")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_our_own_class_is_no_namesake(namesake: dict[str, Any]) -> None:
    assert (namesake["ours"], namesake["silent"]) == ("MegaMoeConfig", [])


def test_the_flag_with_another_class_behind_it_is_an_error(namesake: dict[str, Any]) -> None:
    assert namesake["flag"].startswith("ConfigError: --quantization megamoe: the name belongs to __main__.Theirs")
    assert "Uninstall the other package" in namesake["flag"]


def test_a_run_without_the_flag_is_the_namesakes(namesake: dict[str, Any]) -> None:
    assert (namesake["no flag"], namesake["their checkpoint"]) == ("NoneType", "Theirs")


def test_the_log_names_who_holds_the_name(namesake: dict[str, Any]) -> None:
    assert "the name belongs to __main__.Theirs" in namesake["theirs before ours"]
    assert "the name belongs to vLLM itself" in namesake["vLLM's own"]


def test_a_vllm_that_cannot_be_joined_runs_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line with the reason and what is expected; the flag then is vLLM's own "unknown quantization method"."""

    def missing() -> None:
        raise AttributeError("type object 'Platform' has no attribute 'check_and_update_config'")

    from vllm_megamoe.lanes import startup

    monkeypatch.setattr(startup, "install", missing)
    with caplog.at_level("ERROR", logger="vllm_megamoe.plugin"):
        plugin.register()
    # pytest hears it twice: from our logger, and from vLLM's, to which it is passed.
    (line,) = {record.getMessage() for record in caplog.records if record.name == "vllm_megamoe.plugin"}
    assert "AttributeError: type object 'Platform' has no attribute 'check_and_update_config'" in line
    assert "expected vLLM 0.30 or 0.32 on cpu; vLLM 0.30 with vllm-ascend 0.30.0rc2 on npu" in line
    assert "\n" not in line
