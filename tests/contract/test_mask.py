"""vllm-ascend 0.30.0rc2 cuts the mask of a full batch short where TP does not divide it.

Its mask buffer has max_num_batched_tokens entries, its rows are padded to a multiple of TP
(ascend_forward_context.py, set_mc2_mask; ops/fused_moe/prepare_finalize.py). A lane of ours has to bring a mask as long
as the rows; when a later release does, this test tells.
"""

from typing import Any


def test_513_tokens_over_two_ranks(a3_pair: dict[str, list[Any]]) -> None:
    first, second = a3_pair["mask"]
    assert (first["rows"], second["rows"]) == (257, 257)
    assert (first["mask"], second["mask"]) == (257, 256)
    for answer in (first, second):
        assert "x_active_mask.shape=[256]; expected [257]" in answer["said"]
