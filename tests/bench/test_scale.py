"""docs/scale.md: shapes are the published configs', sizes and stops the products', routers what they say."""

import json
import math
from pathlib import Path

import pytest
import torch
from bench.scale.page import growth, sizes_of
from bench.scale.routers import DOCUMENT, draw, fullness, imbalance, rank_rows, recorded, replayed
from bench.scale.sizes import DEEPSEEK_V3, EP_SIZES, KIMI_K3, SHAPES, Setting, Shape, point_of, time_bound, why_not

from vllm_megamoe.profiles.use_cases import UseCase

A3 = Setting("a3@9.2", UseCase.A8W8_INT, 256)


@pytest.mark.parametrize(
    ("shape", "file", "keys"),
    [
        (DEEPSEEK_V3, "deepseek-ai--DeepSeek-V3", ("n_routed_experts", "num_experts_per_tok", "hidden_size")),
        (KIMI_K3, "moonshotai--Kimi-K3", ("num_experts", "num_experts_per_token", "routed_expert_hidden_size")),
    ],
)
def test_shapes_are_the_published_ones(shape: Shape, file: str, keys: tuple[str, ...], shared_dir: Path) -> None:
    whole = json.loads((shared_dir / "model_configs" / f"{file}_config.json").read_text())
    config = whole.get("text_config", whole)
    found = tuple(config[key] for key in (*keys, "moe_intermediate_size"))
    assert found == (shape.experts, shape.topk, shape.hidden, shape.intermediate)


def test_sizes_are_the_formulas() -> None:
    """torch_api.txt, Atlas A3 window: counts, rows there (int8 and 512 bytes) and back, 512 KiB of state, 10 MiB."""
    rows, topk, hidden, ranks = 256, 8, 7168, 16
    counts = ranks * (math.ceil((ranks * 128 + 1) / 128) * 128) * 4
    half = counts + rows * topk * (hidden + 512) + rows * topk * hidden * 2 + 512 * 1024 + 10 * 1024**2
    point = point_of(DEEPSEEK_V3, A3, ranks)
    assert point.window == 2 * math.ceil(half / 1024**2) * 1024**2
    assert point.receives == rows * ranks * topk
    assert point.wire.combine == topk * hidden * 2
    assert point.weights == 16 * (3 * 7168 * 2048 + 8 * (2 * 2048 + 7168))


def test_products_stop_where_their_limits_say() -> None:
    assert [size for size in EP_SIZES if not why_not(DEEPSEEK_V3, A3, size)] == [2, 4, 8, 16, 32, 64]
    assert "448 experts on a rank" in why_not(KIMI_K3, A3, 2)
    assert why_not(KIMI_K3, A3, 256) == "896 experts do not divide by 256"
    newest = Setting("950@9.2", UseCase.A8W4_FP, 256)
    assert [size for size in EP_SIZES if not why_not(KIMI_K3, newest, size)] == [2, 4, 8, 16, 32, 64, 128]
    assert "- no EP 128: a3@9.2 takes one of 2, 4, 8, 16, 32, 64 ranks" in sizes_of(DEEPSEEK_V3, A3)


def test_growth_of_what_a_rank_holds() -> None:
    found = {line[1]: line[2:] for line in growth(DEEPSEEK_V3, A3)}
    assert found["rows received at most"] == ["x 2.00", "x 2.00", "x 1.00"]
    assert found["weights of a rank"] == ["x 1.00", "x 0.50", "x 2.00"]


def test_a_router_draws_distinct_experts_as_often_as_its_skew_says() -> None:
    """One expert of two by Zipf's law: the popular one two times out of three, within four standard deviations."""
    generator, tokens = torch.Generator().manual_seed(3), 20000
    share = torch.bincount(draw(tokens, 2, 1, 1.0, generator).flatten(), minlength=2).max() / tokens
    assert abs(float(share) - 2 / 3) < 4 * math.sqrt(2 / 9 / tokens)
    ids = draw(500, 32, 8, 0.5, generator)
    assert all(len(set(row)) == 8 for row in ids.tolist())


def test_rows_of_ranks_and_the_fullest() -> None:
    ids = torch.tensor([[0, 1], [0, 3], [0, 2]])
    assert rank_rows(ids, 4, 2).tolist() == [4, 2]
    assert fullness(ids, 4, 2) == 4 / 3
    assert imbalance(4096, 32, 8, 0.0, 1).median == 1.0
    assert imbalance(2048, 32, 8, 1.0, 8).median > imbalance(2048, 32, 8, 0.0, 8).worst


def test_recorded_ids_are_replayed_step_by_step() -> None:
    ids = torch.tensor([[0], [0], [0], [3], [1]])
    found = replayed(ids, 2, 4, 2)
    assert (found.median, found.worst) == (2.0, 2.0)
    with pytest.raises(ValueError, match="6 or more"):
        replayed(ids, 6, 4, 2)
    with pytest.raises(ValueError, match="ids of 3 experts"):
        replayed(ids, 2, 3, 1)


def test_tokens_of_a_document_like_the_same_experts() -> None:
    """Half of a state is the document's, so two tokens share more experts inside one than across two."""
    ids = recorded(2 * DOCUMENT + 7, 64, 8)
    assert ids.shape == (2 * DOCUMENT + 7, 8)
    assert all(len(set(row)) == 8 for row in ids.tolist())
    assert torch.equal(ids[:DOCUMENT], recorded(DOCUMENT, 64, 8))
    chosen = torch.zeros(len(ids), 64).scatter(1, ids, 1.0)
    first, second = chosen[:DOCUMENT], chosen[DOCUMENT : 2 * DOCUMENT]
    alone = 8 * 8 / 64
    """Experts that two tokens share by chance."""
    assert float((first @ first.T).fill_diagonal_(0).sum() / (DOCUMENT * (DOCUMENT - 1))) > 2 * alone
    assert float((first @ second.T).mean()) < 2 * alone


def test_every_shape_has_its_place_on_the_page(repository: Path) -> None:
    text = (repository / "docs" / "scale.md").read_text()
    assert all(f"### {shape.name}" in text for shape in SHAPES)


def test_the_bound_of_a_call_is_that_of_its_weights() -> None:
    """All 16 experts of a rank are touched by 4096 tokens: 0.7 GB in INT8 at the A3's 1.6 TB/s."""
    bound = time_bound(DEEPSEEK_V3, A3, 16, 0.0)
    assert bound.by == "memory"
    assert abs(bound.seconds - point_of(DEEPSEEK_V3, A3, 16).weights / 1.6e12) < 1e-9
