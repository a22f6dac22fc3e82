"""The sizes that `plan` calls legal are those that violate nothing, found by trying every one of them."""

import pytest

from vllm_megamoe.cli.report.groups import legal_ep_sizes, usual_size
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, violations_of
from vllm_megamoe.profiles.profile import PROFILE_NAMES, find_profile


@pytest.mark.parametrize("name", PROFILE_NAMES)
@pytest.mark.parametrize("experts", [96, 1024])
def test_legal_sizes_are_those_without_a_violation(name: str, experts: int) -> None:
    # Sizes that every product takes (950@9.1 has the shortest lists), so that nothing else is in the way.
    layer = MoeFacts("model.layers.0.mlp.experts", experts, topk=6, hidden=5120, intermediate_hidden=1536)
    options = Options(profile=name, requant="allow")
    tried = [size for size in range(1, 97) if experts % size == 0] + ([128, 256, 512, 1024] if experts == 1024 else [])
    legal = [
        size
        for size in tried
        if not violations_of(
            draft_plan(
                EngineFacts("bfloat16", data_parallel=size, expert_parallel=size > 1, max_num_batched_tokens=8),
                [layer],
                options,
            )
        )
    ]
    assert list(legal_ep_sizes([layer], find_profile(name))) == legal
    assert legal


def test_a_size_must_divide_the_experts_of_every_layer() -> None:
    layers = [MoeFacts(f"layer {n}", n, topk=6, hidden=5120, intermediate_hidden=1536) for n in (96, 64)]
    # 48 divides 96 and 64 divides 64, neither divides both; 950@9.1 holds at most 16 experts on a rank.
    assert legal_ep_sizes(layers, find_profile("none")) == (1, 2, 4, 8, 16, 32)
    assert legal_ep_sizes(layers, find_profile("950@9.1")) == (8, 16, 32)
    assert legal_ep_sizes([], find_profile("none")) == ()


def test_the_size_that_is_chosen_where_none_is_given() -> None:
    a3, none = find_profile("a3@9.1"), find_profile("none")
    assert usual_size((2, 4, 8, 16), a3) == 8
    assert usual_size((3, 6, 12), a3) == 6
    assert usual_size((16, 32), a3) == 16
    assert usual_size((), a3) == 8
    assert usual_size((1, 2, 4), none) == 1
