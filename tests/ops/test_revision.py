"""The operator's revision is told by the keywords of its two functions."""

import inspect
from dataclasses import replace

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.ops.cann.installed import PACKAGE, Installed, revision_of
from vllm_megamoe.profiles.profile import PROFILE_NAMES
from vllm_megamoe.simulator import device

PRODUCTS = [name for name in PROFILE_NAMES if name != "none"]


def installed(name: str) -> Installed:
    ops = device(name).modules[PACKAGE]
    functions = ops.get_symm_buffer_for_mega_moe, ops.mega_moe
    return Installed(*functions, *(frozenset(inspect.signature(each).parameters) for each in functions))


@pytest.mark.parametrize("name", PRODUCTS)
def test_follows_from_the_signature(name: str) -> None:
    assert revision_of(installed(name)) == name.split("@")[1]


@pytest.mark.parametrize("since_9_2", ["activation_params", "shared_l1_weights"])
def test_one_between_two_counts_as_the_older(since_9_2: str) -> None:
    found = installed("a3@9.2")
    assert revision_of(replace(found, run_names=found.run_names - {since_9_2})) == "9.1"


def test_an_older_one_is_refused_by_name() -> None:
    found = installed("a3@9.1")
    with pytest.raises(ConfigError, match=r"lacks l1_bias; expected the functions of CANN 9\.1\.0 or newer"):
        revision_of(replace(found, run_names=found.run_names - {"l1_bias"}))
