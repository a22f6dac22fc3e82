"""Sleep mode of vllm-ascend (`rl_config.sleep_mode_extra_cleanup`): our buffer goes before HCCL does and comes back.

The manager is vllm-ascend's own; it finds us by the two names that it looks for.
"""

from typing import Any

import pytest
import torch

PRODUCTS = ("a3@9.2", "950@9.2")


@pytest.fixture(scope="module", params=PRODUCTS)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    from contract.support.launch import run

    return run(request.param, ["sleep"], ranks=2)["sleep"]


def test_rows_are_the_same_after_it(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert torch.equal(answer["before"], answer["after"])


def test_a_step_without_hccl_is_rejected(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert "a destroyed buffer" in answer["asleep"]


def test_the_buffer_stands_on_the_restored_group(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert answer["group before"] != answer["group after"]
        assert answer["same buffer"]
        create, call = "get_symm_buffer_for_mega_moe", "mega_moe"
        assert answer["events"] == [create, call, create, call]


def test_nothing_is_open_once_the_groups_are_gone(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert (answer["open"], answer["open at the end"]) == (1, 0)
