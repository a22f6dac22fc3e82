"""Models taught from outside."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan import register_model_facts, registry
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config.reader import is_known, read_layers

LAYER = MoeFacts("decoder.3.moe", num_experts=6, topk=2, hidden=96, intermediate_hidden=40, index=3)


@pytest.fixture(autouse=True)
def nothing_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TAUGHT", {})


def teach(result: Any, architecture: str = "MyMoeForCausalLM") -> dict[str, Any]:
    register_model_facts(architecture, lambda config: result)
    return {"architectures": [architecture]}


def test_a_taught_model_is_read_by_its_function() -> None:
    config = teach(iter([LAYER]))
    assert read_layers(config) == (LAYER,)
    assert is_known(config)


def test_the_function_sees_the_whole_config() -> None:
    seen: list[Any] = []
    register_model_facts("MyMoeForCausalLM", lambda config: seen.append(config) or [])
    config = {"architectures": ["MyMoeForCausalLM"], "blocks": [{"experts": 6}]}
    assert read_layers(config) == ()
    assert seen == [config]


def test_it_wins_over_the_table() -> None:
    config = teach([LAYER], "MixtralForCausalLM")
    sizes = {"num_local_experts": 8, "num_experts_per_tok": 2, "hidden_size": 64, "intermediate_size": 32}
    assert read_layers({**config, **sizes, "num_hidden_layers": 4}) == (LAYER,)


def test_a_model_is_taught_once() -> None:
    def read(config: Any) -> list[MoeFacts]:
        return [LAYER]

    register_model_facts("MyMoeForCausalLM", read)
    register_model_facts("MyMoeForCausalLM", read)
    with pytest.raises(ConfigError, match=r"'MyMoeForCausalLM'.*has a function already"):
        register_model_facts("MyMoeForCausalLM", lambda config: [])


@pytest.mark.parametrize(
    ("result", "named"),
    [(LAYER, "returned MoeFacts"), (None, "NoneType"), ("facts", "str"), ([LAYER, {"topk": 2}], "item 1 of type dict")],
)
def test_a_wrong_result_is_named(result: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=f"'MyMoeForCausalLM' returned .*{named.removeprefix('returned ')}"):
        read_layers(teach(result))


@pytest.mark.parametrize(("architecture", "fn"), [("", list), (3, list), ("MyMoeForCausalLM", "read")])
def test_a_wrong_call_is_rejected(architecture: Any, fn: Any) -> None:
    with pytest.raises(ConfigError, match=r"register_model_facts.*expected"):
        register_model_facts(architecture, fn)


def test_a_function_that_fails_is_named() -> None:
    register_model_facts("MyMoeForCausalLM", lambda config: [replace(LAYER, topk=config["experts_per_token"])])
    with pytest.raises(ConfigError, match=r"'MyMoeForCausalLM' failed: KeyError\('experts_per_token'\)") as caught:
        read_layers({"architectures": ["MyMoeForCausalLM"]})
    assert isinstance(caught.value.__cause__, KeyError)


PACKAGE = """
from vllm_megamoe.plan import register_model_facts
from vllm_megamoe.plan.facts import MoeFacts


def teach():
    register_model_facts("PkgMoeForCausalLM", read)


def read(config):
    return [MoeFacts("decoder.0.moe", config["n"], topk=2, hidden=96, intermediate_hidden=40)]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def install(value: str) -> None:
        (tmp_path / "teaching_package.py").write_text(PACKAGE)
        info = tmp_path / "teaching_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: teaching-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[vllm_megamoe.model_facts]\nmine = {value}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(registry, "_load_entry_points", cache(registry._load_entry_points.__wrapped__))

    return install


def test_an_installed_package_teaches(installed: Callable[[str], None]) -> None:
    installed("teaching_package:teach")
    for _ in range(2):
        (layer,) = read_layers({"architectures": ["PkgMoeForCausalLM"], "n": 6})
        assert (layer.num_experts, layer.hidden) == (6, 96)


def test_an_installed_package_that_fails_is_named(installed: Callable[[str], None]) -> None:
    installed("teaching_package:learn")
    with pytest.raises(ConfigError, match=r"'mine' = 'teaching_package:learn' of vllm_megamoe\.model_facts"):
        read_layers({"architectures": ["PkgMoeForCausalLM"], "n": 6})
