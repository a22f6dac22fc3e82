"""Layers of different formats: one operator configuration on each communicator, or all who stand in the way by name."""

from dataclasses import replace
from typing import Any

import pytest

from vllm_megamoe.checkpoint.formats import Known
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, plan_layer, violations_of
from vllm_megamoe.plan.screen import render
from vllm_megamoe.profiles.profile import PROFILE_NAMES

ENGINE = EngineFacts("bfloat16", data_parallel=16, expert_parallel=True, max_num_batched_tokens=8192)
INT4, INT8 = "msmodelslim-w4a8-dynamic", "msmodelslim-w8a8-dynamic"
MX4, MX8, A4 = "msmodelslim-w4a8-mxfp", "msmodelslim-w8a8-mxfp8", "msmodelslim-w4a4-mxfp4"


def layer(number: int, form: str, draft: bool = False, **more: Any) -> MoeFacts:
    name = f"model.layers.{number}.mlp.experts"
    plain = MoeFacts(name, 256, 8, 7168, 2048, index=number, experts_format=Known(form), draft=draft)
    return replace(plain, **more)


def plan(*layers: MoeFacts, **options: Any) -> Plan:
    verdict = draft_plan(ENGINE, layers, Options(**options))
    assert isinstance(verdict, Plan), violations_of(verdict)
    return verdict


def told(*layers: MoeFacts, **options: Any) -> list[str]:
    return [str(violation) for violation in violations_of(draft_plan(ENGINE, layers, Options(**options)))]


@pytest.mark.parametrize("profile", ["none", "a2@9.1", "a3@9.1", "a2@9.2", "a3@9.2"])
def test_int4_and_int8_layers_share_a_communicator(profile: str) -> None:
    """Both dispatch INT8 (mode 2); on A3 of 9.1 the buffer is told twice the rows because of INT4, for both."""
    found = plan(layer(3, INT4), layer(4, INT8), profile=profile, workspace_budget_gib=1.0)
    assert [one.use_case.value for one in found.layers] == ["a8w4-int", "a8w8-int"]
    assert len(found.buffers) == 1
    assert {one.communicator for one in found.layers} == {"main"}
    alone = [plan(layer(3, form), profile=profile, workspace_budget_gib=1.0) for form in (INT4, INT8)]
    assert found.layers[0].capacity.chunk == min(one.layers[0].capacity.chunk for one in alone)
    factor = 2 if profile == "a3@9.1" else 0
    assert found.buffers[0].max_recv_token_num == factor * found.layers[0].capacity.receive_bound


def test_layers_that_need_more_workspace_decide_for_all() -> None:
    """Without the agreement these two would be planned with calls of different sizes."""
    alone = [plan(layer(3, form), profile="a3@9.2", workspace_budget_gib=1.0).layers[0] for form in (INT4, INT8)]
    assert alone[0].capacity.chunk != alone[1].capacity.chunk


@pytest.mark.parametrize("profile", ["none", "950@9.2"])
def test_fp4_rows_are_for_all_layers_or_for_none(profile: str) -> None:
    assert [one.use_case.value for one in plan(layer(0, A4), layer(1, A4), profile=profile).layers] == ["a4w4-fp"] * 2
    mixed = plan(layer(0, A4), layer(1, MX8), layer(2, MX4), profile=profile)
    assert [one.use_case.value for one in mixed.layers] == ["a8w4-fp", "a8w8-fp", "a8w4-fp"]
    assert {one.loss for one in mixed.layers} == {""}
    assert len(mixed.buffers) == 1


@pytest.mark.parametrize("profile", ["none", "a3@9.2"])
def test_layers_in_the_way_are_named(profile: str) -> None:
    layers = [layer(i, "bf16" if i in (5, 7, 8) else INT8) for i in range(3, 10)]
    (said,) = told(*layers, profile=profile)
    assert "layers 5, 7-8 (a16w16 from bf16) with dispatch_quant_mode 0 instead of 2" in said
    assert "on the communicator of layers 3-4, 6, 9 (a8w8-int from msmodelslim-w8a8-dynamic)" in said
    assert said.endswith("with a loss one type holds all of these layers.")
    consented = plan(*layers, profile=profile, requant="allow")
    assert {one.use_case.value for one in consented.layers} == {"a16w16"}
    assert {one.loss for one in consented.layers} == {"", "0.15 to 0.18 %"}


def test_layers_of_other_sizes_have_no_remedy_in_consent() -> None:
    (said,) = told(layer(3, INT8), layer(4, INT8, topk=6), profile="a3@9.2")
    assert "layer 4 (a8w8-int" in said
    assert "num_topk 6 instead of 8" in said
    assert "requant" not in said


@pytest.mark.parametrize("profile", [name for name in PROFILE_NAMES if not name.startswith("950")])
def test_a_float_draft_layer_has_a_communicator_of_its_own(profile: str) -> None:
    """The MTP layer of many msModelSlim checkpoints is BF16 (facts/checkpoints.md 3.2)."""
    found = plan(layer(3, INT8), layer(4, INT8), layer(61, "bf16", draft=True), profile=profile)
    assert [one.communicator for one in found.layers] == ["main", "main", "draft"]
    assert [one.use_case.value for one in found.layers] == ["a8w8-int", "a8w8-int", "a16w16"]
    assert len(found.buffers) == 2
    text = render(found)
    assert "layers 61 (draft, a communicator of its own): a16w16 from bf16" in text
    assert "draft layers have a communicator of their own" in text
    windows = found.window_bytes
    assert windows == {"main": found.layers[0].window_bytes, "draft": found.layers[2].window_bytes}
    assert (profile == "none") == (sum(windows.values()) == 0)


def test_a_draft_layer_that_fits_shares() -> None:
    """INT8 beside INT4 (DeepSeek W4A8), or FP4 beside FP8; one capacity for both."""
    for main, draft, profile in ((INT4, INT8, "a3@9.1"), (MX4, MX8, "950@9.2"), (A4, A4, "950@9.2")):
        found = plan(layer(3, main), layer(61, draft, draft=True), profile=profile, workspace_budget_gib=1.0)
        assert {one.communicator for one in found.layers} == {"main"}
        assert len(found.buffers) == 1


def test_a_draft_layer_does_not_push_the_main_model_off_its_best() -> None:
    found = plan(layer(3, A4), layer(61, MX8, draft=True), profile="950@9.2")
    assert [(one.use_case.value, one.communicator) for one in found.layers] == [
        ("a4w4-fp", "main"),
        ("a8w8-fp", "draft"),
    ]


def test_draft_layers_alone_are_planned_like_any() -> None:
    found = plan(layer(61, INT8, draft=True), profile="a3@9.2")
    assert found.layers[0].communicator == "main"


def test_draft_layers_agree_among_themselves() -> None:
    said = told(layer(3, INT4), layer(61, "bf16", draft=True), layer(62, "bf16", draft=True, topk=4), profile="a3@9.2")
    assert len(said) == 1
    assert "draft layer 62 (a16w16 from bf16) with num_topk 4 instead of 8" in said[0]
    assert "drop --speculative-config" in said[0]


@pytest.mark.parametrize("profile", PROFILE_NAMES)
def test_a_layer_is_planned_again_as_it_was_agreed(profile: str) -> None:
    """A worker makes a layer's plan anew when the layer shows what no config has (lanes.carried)."""
    layers = [layer(3, A4), layer(4, MX8), layer(5, INT4), layer(6, INT8, draft=True)]
    layers = [one for one in layers if profile != "950@9.1" or one.index == 4]
    options = Options(profile=profile, requant="allow", max_padding_overhead=9.0)
    verdict = draft_plan(ENGINE, layers, options)
    found = verdict if isinstance(verdict, Plan) else verdict.draft
    again = [draft_plan(ENGINE, [one.facts], options, one.agreed) for one in found.layers]
    assert found.layers
    for one, other in zip(found.layers, again, strict=True):
        assert (other if isinstance(other, Plan) else other.draft).layers == (one,)
    if isinstance(verdict, Plan):
        assert plan_layer(ENGINE, layers[0], options, found.layers[0].agreed) == found.layers[0]
