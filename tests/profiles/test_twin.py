"""Through the public functions, on two ranks: each product rejects at its own point, and computes as `none` does."""

import re

import pytest
from profiles.layers import LEGAL_91
from profiles.rejections import A2_A3, REFUSALS
from profiles.scenes import Scene, attempts, results, windows

from vllm_megamoe.errors import ConfigError, OperatorError
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, settings
from vllm_megamoe.testing.ranks import World

TAKEN = [
    Scene("a2@9.1", "a16w16", {"hidden": 1024}),
    Scene("a3@9.1", "a8w4-int", {"max_recv_token_num": 32}),
    Scene("a2@9.1", "a8w4-int"),
    Scene("a2@9.2", "a16w16", change="clamp_0"),
    Scene("a2@9.2", "a16w16", change="swigluoai"),
    Scene("a3@9.2", "a16w16", change="fewer_rows"),
    Scene("950@9.2", "a8w8-fp", change="router_bf16"),
    Scene("950@9.2", "a8w8-fp", change="clamp_7"),
    Scene("950@9.2", "a8w8-fp", change="fewer_rows_on_rank_1"),
    Scene("950@9.2", "a8w8-fp", topology="urma"),
    Scene("950@9.2", "a8w8-fp", change="stacked"),
    Scene("950@9.2", "a8w4-fp"),
    Scene("a2@9.1", "a16w16", environment={"HCCL_BUFFSIZE": "11"}),
]
SAME = [
    *((Scene(name, kind)) for name in A2_A3 for kind in ("a16w16", "a8w8-int")),
    Scene("a2@9.1", "a8w4-int"),
    Scene("a3@9.1", "a8w4-int", {"max_recv_token_num": 32}),
    Scene("950@9.2", "a8w8-fp"),
    Scene("950@9.2", "a8w4-fp"),
    Scene("950@9.1", "a8w8-fp", size=LEGAL_91),
]


def test_rejected(two_ranks: World) -> None:
    scenes = [rejection.scene for rejection in REFUSALS]
    for outcomes in two_ranks.run(attempts, [(scenes,)] * 2, 120):
        for rejection, (where, text) in zip(REFUSALS, outcomes, strict=True):
            assert re.match(f"OperatorError: {rejection.message}", text), (rejection, text)
            assert where == rejection.where, rejection


def test_taken(two_ranks: World) -> None:
    for outcomes in two_ranks.run(attempts, [(TAKEN,)] * 2, 120):
        assert outcomes == [("", "")] * len(TAKEN)


def test_the_demo_layer_gives_what_it_gives_without_a_profile(two_ranks: World) -> None:
    free = [Scene("none", s.kind, s.buffer, size=s.size, change=s.change) for s in SAME]
    for with_profile, without in zip(
        two_ranks.run(results, [(SAME,)] * 2, 120), two_ranks.run(results, [(free,)] * 2, 120), strict=True
    ):
        for scene, (y, counts), (want, expected_counts) in zip(SAME, with_profile, without, strict=True):
            assert y.equal(want), scene
            assert y.abs().sum() > 0, scene
            assert counts.equal(expected_counts), scene


def test_rows_that_the_device_leaves_undefined_are_nan(two_ranks: World) -> None:
    # without a profile they are 0 (the twin's own promise)
    pairs = [("a2@9.1", "a16w16", "mask"), ("a3@9.2", "a8w8-int", "mask"), ("950@9.2", "a8w8-fp", "no_ids")]
    scenes = [Scene(name, kind, change=change) for profile, kind, change in pairs for name in (profile, "none")]
    for found in two_ranks.run(results, [(scenes,)] * 2):
        for (y, counts), (free, free_counts) in zip(found[::2], found[1::2], strict=True):
            assert y[1].isnan().all()
            assert free[1].eq(0).all()
            rest = [0, 2, 3]
            assert y[rest].equal(free[rest])
            assert counts.equal(free_counts)


def test_window_sizes(two_ranks: World) -> None:
    # HCCL's default of 200 MB in each direction (torch_api.txt:381, example at 717); 950: by hand from its formula
    # 60 KiB + area1 + ceil512(4 * 4224) + ceil512(4 * 6 * 8192), area1 = ceil512(3 experts x 2 ranks x (32 + 32)) = 512
    for found in two_ranks.run(windows, [(["a2@9.1", "a3@9.2", "950@9.1", "none"],)] * 2):
        assert found == [400 << 20, 400 << 20, 61440 + 512 + 16896 + 196608, 0]


@pytest.mark.parametrize("name", [*A2_A3, "950@9.1", "950@9.2"])
def test_one_rank_alone_exists_in_none_only(name: str) -> None:
    size = {"num_experts": 4, "num_max_tokens_per_rank": 4, "num_topk": 2, "hidden": 4096, "intermediate_hidden": 0}
    get_symm_buffer_for_mega_moe(None, **size)
    with (
        settings(profile=name),
        pytest.raises(OperatorError, match=r"ep_world_size=1; expected .*One rank alone exists"),
    ):
        get_symm_buffer_for_mega_moe(None, **size)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"profile": "310p"}, r"does not exist on this product"),
        ({"profile": "200I/500 A2"}, r"does not exist on this product"),
        ({"profile": "a4@9.1"}, r"expected one of none, a2@9\.1"),
        ({"profile": "a3@9.2", "topology": "urma"}, r"only Ascend 950"),
        ({"profile": "950@9.2", "topology": "ring"}, r"expected 'auto', 'mte' or 'urma'"),
    ],
)
def test_settings_reject_what_is_no_profile(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message), settings(**given):
        pass
