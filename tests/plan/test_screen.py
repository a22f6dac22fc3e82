"""The plan as the log shows it at start-up."""

from dataclasses import replace

from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.screen import kinds, number_runs, render

EP16 = EngineFacts(dtype="bfloat16", data_parallel=16, expert_parallel=True, max_num_batched_tokens=2048)
QWEN3 = MoeFacts("model.layers.0.mlp.experts", 128, 8, 2048, 768, index=0)


def numbered(layer: MoeFacts, *numbers: int) -> list[MoeFacts]:
    return [replace(layer, name=f"model.layers.{n}.mlp.experts", index=n) for n in numbers]


def test_padding_is_one_line_with_its_price_in_flops_and_gib() -> None:
    plan = make_plan(EP16, numbered(QWEN3, *range(48)), Options(profile="a3@9.1"))
    # 8 experts of a rank, three matrices of 2048 x (1024 - 768), two bytes, 48 layers: 1.125 GiB.
    assert 48 * 8 * 3 * 2048 * 256 * 2 == 1.125 * 2**30
    (line,) = [line for line in render(plan).splitlines() if "padding" in line]
    assert line.strip() == (
        "padding: intermediate_hidden 768 -> 1024 (+33% weights and FLOPs), 1.125 GiB of a rank in 48 layer(s)"
    )
    assert "  padding: none\n" in render(make_plan(EP16, [QWEN3], Options()))


def test_a_profile_says_what_its_name_stands_for() -> None:
    """Of CANN 9.2.0, which is out, nothing has been read: the name must not promise it."""
    sentence = "9.2 the operator source of 2026-08-21; CANN 9.2.0 itself (2026-09-30) has not been read yet\n"
    assert sentence in render(make_plan(EP16, [QWEN3], Options(profile="a3@9.2")))
    assert "9.2" not in render(make_plan(EP16, [QWEN3], Options(profile="none")))


def test_one_screen_says_what_runs_where() -> None:
    shared = SharedFacts(1536, 2048)
    plan = make_plan(EP16, numbered(replace(QWEN3, shared=shared), 1, 2, 4), Options(profile="none"))
    text = render(plan)
    assert text.startswith("megamoe plan: profile none, tensor parallel 1, data parallel 16, 16 ranks, 3 MoE layers\n")
    assert "layers 1-2, 4: a16w16 from bf16, swiglu\n" in text
    assert "experts 128 (8 on a rank), topk 8, hidden 2048, intermediate_hidden 768\n" in text
    assert "shared experts: fused, 2 of the routed width\n" in text
    assert "2048 of a step in 1 call(s) of 2048" in text
    # (8 + 2) experts x three matrices of 2048 x 768 x two bytes x three layers.
    assert f"experts of all layers on a rank: {10 * 3 * 2048 * 768 * 2 * 3 / 2**30:.3f} GiB" in text


def test_layers_of_another_kind_get_a_block_of_their_own() -> None:
    clamped = replace(QWEN3, activation=ActivationFacts("silu", limit=7.0))
    lossy = Options(use_case="a8w8-int", requant="allow")
    plan = make_plan(EP16, [*numbered(QWEN3, 0, 1), *numbered(clamped, 2)], lossy)
    assert [len(kind) for kind in kinds(plan.layers)] == [2, 1]
    text = render(plan)
    lost = "0.64 to 0.91 % of the weights' rms, a layer's output 1.9 to 3.1 %; of Gaussian weights"
    assert f"layers 0-1: a8w8-int from bf16, lossy ({lost}), swiglu\n" in text
    assert f"layers 2: a8w8-int from bf16, lossy ({lost}), swiglu (clamp 7)\n" in text


def test_a_draft_like_the_model_has_a_block_of_its_own() -> None:
    draft = replace(QWEN3, name="model.layers.48.mlp.experts", index=48, draft=True)
    text = render(make_plan(EP16, [*numbered(QWEN3, 0, 1), draft], Options()))
    assert "layers 0-1: a16w16" in text
    assert "layers 48 (draft): a16w16" in text


def test_numbers_are_runs_and_unknown_ones_are_none() -> None:
    assert number_runs([7, 0, 2, 1, 5]) == "0-2, 5, 7"
    assert number_runs([-1, 3]) == ""
    assert number_runs([]) == ""
