"""The tables that come from other packages say what the installed vLLM and transformers say."""

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tools import write_tables
from vllm_megamoe.plan.read_config.architectures import MTP_CLASSES, WRAPPERS, family_of, in_vllm
from vllm_megamoe.plan.read_config.defaults import with_defaults
from vllm_megamoe.plan.read_config.families import FAMILIES


@pytest.fixture(scope="module")
def registry() -> tuple[str, list[str], dict[str, str]]:
    """Version of the installed vLLM, the classes of its registry, and those that it says it dropped."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "model_executor" / "models" / "registry.py").read_text()
    return importlib.metadata.version("vllm").split("+")[0], *write_tables.registry_of(source)


def test_architectures(registry: tuple[str, list[str], dict[str, str]]) -> None:
    version, classes, dropped = registry
    table = json.loads(write_tables.ARCHITECTURES.read_text())
    assert table["registries"][version] == classes
    assert dropped.items() <= table["dropped"].items()
    assert {"MixtralForCausalLM", "Qwen3VLMoeForConditionalGeneration", "DeepSeekMTPModel"} <= set(classes)
    assert not {"Dots1ForCausalLM", "TransformersMoEForCausalLM"} & set(classes)
    assert in_vllm("Dots1ForCausalLM").last == "0.23.0"


# Language models that vLLM builds inside another class alone, and other spellings of published configs.
INSIDE = {"InternS1ProForCausalLM", "MiniMaxM3ForCausalLM", "AriaTextForCausalLM"}


def test_every_class_of_our_tables_is_one_of_vllms(registry: tuple[str, list[str], dict[str, str]]) -> None:
    ours = {name for family in FAMILIES for name in family.architectures} | set(WRAPPERS) | set(MTP_CLASSES)
    assert ours - set(registry[1]) == INSIDE
    assert all(family_of(name) is not None for name in ours)


@pytest.mark.parametrize(
    "model_type", ["mixtral", "qwen3_moe", "deepseek_v3", "dbrx", "longcat_flash", "glm4v_moe", "ernie4_5_moe"]
)
def test_defaults(model_type: str) -> None:
    """A config that says nothing becomes that of its class, as far as the plan reads it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = CONFIG_MAPPING[model_type]().to_dict()
    ours = with_defaults({"model_type": model_type})
    assert len(ours) > 1

    def agree(mine: Any, theirs: Any) -> bool:
        if isinstance(mine, dict):
            return all(agree(value, theirs[key]) for key, value in mine.items())
        return bool(mine == theirs)

    assert agree(ours, whole)


def test_a_key_that_is_there_stays_and_a_renamed_one_moves() -> None:
    config = {"model_type": "mixtral", "num_experts": 3, "hidden_size": None}
    filled = with_defaults(config)
    assert (filled["num_local_experts"], filled["hidden_size"]) == (3, None)
    assert "num_experts" not in filled
    plain = {"model_type": "of nobody", "num_experts": 3}
    assert with_defaults(plain) is plain
