"""What HCCL gives to a communicator is compared with what the operator needs, once the buffer is there."""

import re

import pytest

from vllm_megamoe.lanes.ascend.method import window_problems
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan

MIB = 1 << 20


def plan(profile: str) -> LayerPlan:
    engine = EngineFacts(
        "bfloat16", tensor_parallel=8, expert_parallel=True, max_num_batched_tokens=8192, own_rows=True
    )
    layer = MoeFacts("model.layers.0.mlp.experts", num_experts=128, topk=8, hidden=2048, intermediate_hidden=1024)
    return make_plan(engine, [layer], Options(profile=profile)).layers[0]


@pytest.mark.parametrize("profile", ["a2@9.2", "a3@9.1", "a3@9.2"])
def test_too_small_a_window_names_the_value(profile: str) -> None:
    """HCCL reports both halves; HCCL_BUFFSIZE is MB of one."""
    layer = plan(profile)
    needed = layer.hccl_buffsize_mb
    assert needed is not None
    assert needed > 1
    assert window_problems(layer, 2 * needed * MIB) == []
    (said,) = window_problems(layer, 2 * (needed - 1) * MIB)
    found = re.search(r"Set HCCL_BUFFSIZE=(\d+)", said)
    assert found is not None
    assert int(found[1]) in (needed - 1, needed)


def test_own_rows_are_not_called_replicated() -> None:
    assert plan("a3@9.1").tokens == "own"
