"""Failures B15 to B25 of docs/failures.md: uneven rows, idle ranks, overlap, two models on one communicator."""

from dataclasses import replace

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.capacity import step_calls
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.profiles.facts import BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.rules import broken_by_call

LAYER = MoeFacts("model.layers.3.mlp.experts", 256, 8, 7168, 2048, index=3)
EP16 = EngineFacts("bfloat16", data_parallel=16, expert_parallel=True, max_num_batched_tokens=256)
BUFFER = BufferFacts(ep_world_size=2, num_experts=8, num_max_tokens_per_rank=16, num_topk=2, hidden=1024)
BF16 = WeightFacts(element1="BF16", element2="BF16", count=4, intermediate_hidden=1024)


@pytest.mark.parametrize("profile", ["a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"])
def test_b15_other_row_counts_on_another_rank_are_rejected(profile: str) -> None:
    call = CallFacts(rows=5, routed=BF16, rows_of_ranks=(5, 9))
    (broken,) = broken_by_call(find_profile(profile), BUFFER, call)
    assert broken.value.startswith("5, 9")
    assert "wrong rows" in broken.silent
    assert not broken_by_call(find_profile(profile), BUFFER, replace(call, rows=9, rows_of_ranks=(9, 9)))


def test_b16_ranks_with_fewer_rows_take_the_same_way() -> None:
    """Calls of a step follow from the largest rank alone, for every number of rows up to twice the capacity."""
    chunk = 24
    for largest in range(1, 2 * chunk + 1):
        calls, each = step_calls(largest, chunk)
        assert calls == (1 if largest <= chunk else 2)
        assert each <= chunk


def test_b22_overlap_of_two_streams_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"dual batch overlap is on.*Drop --enable-dbo"):
        make_plan(replace(EP16, dual_batch_overlap=True), [LAYER], Options())


@pytest.mark.parametrize("change", [{"hidden": 4096}, {"topk": 4}, {"num_experts": 128}])
def test_b23_a_draft_model_does_not_share_a_communicator_that_it_would_break(change: dict[str, int]) -> None:
    draft = replace(LAYER, name="mtp", draft=True, **change)  # type: ignore[arg-type]
    plan = make_plan(EP16, [LAYER, draft], Options(profile="a3@9.2"))
    assert [layer.communicator for layer in plan.layers] == ["main", "draft"]
    assert len(plan.buffers) == 2
