"""One legal and one illegal example for each rule; messages name what came and what to change."""

import re
from dataclasses import replace

import pytest
from plan.walk import ask

from vllm_megamoe.checkpoint.formats import Known, Mixed, format_named
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, make_plan, violations_of

LAYER = MoeFacts(name="model.layers.3.mlp.experts", num_experts=6, topk=2, hidden=96, intermediate_hidden=64)
ENGINE = EngineFacts(dtype="bfloat16")
EP2 = replace(ENGINE, tensor_parallel=2, expert_parallel=True)

QUANTISED = ("a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp")

LEGAL = {
    "one rank": (ENGINE, LAYER, {}),
    "two ranks": (EP2, LAYER, {}),
    "data parallel": (replace(ENGINE, data_parallel=3, expert_parallel=True), LAYER, {}),
    "float32 in the twin": (replace(ENGINE, dtype="float32"), LAYER, {}),
    "consented requantisation": (EP2, LAYER, {"use_case": "a8w8-int", "requant": "allow"}),
    "rows split over tensor ranks": (
        replace(EP2, data_parallel=3, sequence_parallel=True),
        LAYER,
        {"use_case": "a16w16"},
    ),
}

ILLEGAL = {
    "no expert parallelism": (replace(EP2, expert_parallel=False), LAYER, {}, "Add --enable-expert-parallel"),
    "experts do not divide": (
        replace(EP2, tensor_parallel=4),
        LAYER,
        {},
        r"6 experts do not divide over 4 ranks.*\[1, 2, 3, 6\]",
    ),
    "no rank number that the product lacks is proposed": (
        replace(EP2, tensor_parallel=4),
        LAYER,
        {"profile": "a3@9.2"},
        r"6 experts do not divide over 4 ranks.*data parallel from \[2\]",
    ),
    "absurdly many experts": (
        replace(EP2, tensor_parallel=3),
        replace(LAYER, num_experts=2**40),
        {},
        r"do not divide over 3 ranks.*No number of ranks suits",
    ),
    "prefill context parallel": (
        replace(EP2, prefill_context_parallel=2),
        LAYER,
        {},
        "--prefill-context-parallel-size",
    ),
    "rows replicated over one axis": (
        replace(EP2, data_parallel=3, sequence_parallel=False),
        LAYER,
        {},
        "tensor parallelism or data parallelism alone",
    ),
    "float16": (
        replace(ENGINE, dtype="float16"),
        LAYER,
        {},
        r"dtype: float16; expected bfloat16\. Add --dtype bfloat16",
    ),
    **{
        f"float32 with {use_case}": (
            replace(ENGINE, dtype="float32"),
            LAYER,
            {"use_case": use_case, "requant": "allow"},
            f"float32 with use case {use_case}; expected bfloat16",
        )
        for use_case in QUANTISED
    },
    "float32 on a product": (
        replace(ENGINE, dtype="float32"),
        LAYER,
        {"profile": "a3@9.2"},
        r"dtype: float32; expected bfloat16",
    ),
    "biases": (ENGINE, replace(LAYER, has_bias=True), {}, "experts carry biases"),
    "foreign format": (
        ENGINE,
        replace(LAYER, experts_format=format_named("fp9")),
        {},
        "'fp9'.*not known here .known: auto-round",
    ),
    **{
        f"{use_case} without consent": (
            ENGINE,
            LAYER,
            {"use_case": use_case},
            rf'{use_case} from BF16 experts is lossy \([\d.]+ to [\d.]+ %.*"requant": "allow"',
        )
        for use_case in QUANTISED
    },
    "more choices than experts": (ENGINE, replace(LAYER, topk=7), {}, r"topk = 7 of 6 experts; expected .*\[1, 6\]"),
    "a negative limit": (
        ENGINE,
        replace(LAYER, activation=ActivationFacts(limit=-1.0)),
        {},
        r"swiglu with a limit of -1\.0; expected a number above 0, or none",
    ),
    "an alpha beyond float32": (
        ENGINE,
        replace(LAYER, activation=ActivationFacts("swigluoai", alpha=1e39)),
        {},
        r"alpha = 1e\+39; expected a finite float32",
    ),
    "more experts than a rank of the twin has room for": (
        ENGINE,
        replace(LAYER, num_experts=2048),
        {},
        r"2048 experts over 1 ranks; expected at most 1024 on a rank.*from \[2, 4, 8",
    ),
    "merged and quantised rows": (
        ENGINE,
        LAYER,
        {"combine_comm_mode": 1, "combine_quant": "e5m2"},
        "Drop combine_comm_mode or combine_quant",
    ),
    "gelu": (ENGINE, replace(LAYER, activation=ActivationFacts("gelu")), {}, "activation 'gelu'"),
    "weights on input": (ENGINE, replace(LAYER, router_weight_on_input=True), {}, "apply_router_weight_on_input"),
    "reduced outside": (ENGINE, replace(LAYER, skips_reduction=True), {}, "skip_final_all_reduce"),
    "lora on experts": (
        replace(ENGINE, lora=True, lora_targets=("qkv_proj", "experts", "mlp.experts.3.up_proj")),
        LAYER,
        {},
        "Drop experts, mlp.experts.3.up_proj from --lora-target-modules",
    ),
    "eplb": (replace(ENGINE, eplb=True), LAYER, {}, "Drop --enable-eplb"),
    "dbo": (replace(ENGINE, dual_batch_overlap=True), LAYER, {}, "Drop --enable-dbo"),
}


@pytest.mark.parametrize("case", LEGAL)
def test_legal(case: str) -> None:
    engine, layer, options = LEGAL[case]
    assert violations_of(draft_plan(engine, [layer], Options(**options))) == ()


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal(case: str) -> None:
    engine, layer, options, message = ILLEGAL[case]
    with pytest.raises(ConfigError, match=message):
        make_plan(engine, [layer], Options(**options))


def test_layers_alike_are_told_once() -> None:
    """A format names its projections within the layer, so that layers alike have one reason (23 on a real model)."""
    form = Mixed(((Known("bf16"), "0.down_proj"), (Known("fp8"), "0.up_proj")))
    mixed = [replace(LAYER, name=f"model.layers.{i}.mlp.experts", experts_format=form) for i in (1, 3, 11)]
    (told,) = violations_of(draft_plan(ENGINE, mixed, Options()))
    assert told.where == "model.layers.1.mlp.experts and 2 more"


def test_all_violations_come_in_one_error() -> None:
    engine = EngineFacts(dtype="float16", tensor_parallel=4, expert_parallel=True, eplb=True)
    layer = replace(LAYER, activation=ActivationFacts("relu2"), has_bias=True)
    with pytest.raises(ConfigError) as caught:
        make_plan(engine, [layer, replace(layer, name="another")], Options(), ["an option is misspelt."])
    text = str(caught.value)
    for part in ("float16", "6 experts", "load balancing", "relu2", "biases", "misspelt"):
        assert part in text
    # The engine's violations are the same for both layers and are said once; so is a rule that both layers break.
    assert text.count("load balancing is on") == 1
    assert "model.layers.3.mlp.experts and 1 more: activation 'relu2'" in text
    assert "vllm_megamoe/plan/activation.py" in text


def test_a_refused_use_case_hides_no_other_rule() -> None:
    question = ask(
        ("950@9.1", "auto"),
        "a4w4-fp",
        ActivationFacts("gelu"),
        "one",
        sizes=(2048, 1024),
        experts=(32, 4),
        dtype="float32",
        rows=64,
        combine_quant="e5m2",
        combine_comm_mode=1,
        max_recv_token_num=3,
        fuse_shared_experts="on",
        workspace_budget_gib=1e-4,
    )
    told = "\n".join(map(str, violations_of(draft_plan(question.engine, [question.layer], question.options))))
    for words in (
        r"^use_case: a4w4-fp on 950@9.1",
        r"^dtype: float32",
        r"activation 'gelu'",
        r"zero-padding: hidden 2048 -> 4096",
        r"workspace_budget_gib = ",
        r"max_recv_token_num = 3; expected 0 or at least 8 = 1 rows x 2 ranks x min\(4, 16\)",
        r"fuse_shared_experts = 'on'",
        r"combine_quant_mode=3; expected 0",
        r"combine_comm_mode=1; expected 0",
        r"num_topk=4; expected one of 6, 8",
    ):
        assert len(re.findall(words, told, re.MULTILINE)) == 1, (words, told)
    assert "x.dtype" not in told  # the rule about the model's dtype has a remedy that a user can follow


@pytest.mark.parametrize(("use_case", "told"), [("a16w16", True), ("a8w8-int", False), ("a8w8-fp", False)])
def test_what_another_use_case_would_put_right_is_not_told_beside_a_refused_one(use_case: str, told: bool) -> None:
    """The window holds the INT8 rows of the integer use cases and not BF16 ones; of a8w8-fp on A3 neither is asked."""
    layer = MoeFacts("model.layers.0.mlp.experts", 64, 8, 7168, 2048, index=0)
    engine = EngineFacts("bfloat16", 16, expert_parallel=True, max_num_batched_tokens=4096, hccl_buffsize_mb=60)
    options = Options(profile="a3@9.2", use_case=use_case, requant="allow")  # type: ignore[arg-type]
    found = list(map(str, violations_of(draft_plan(engine, [layer], options))))
    assert any("HCCL_BUFFSIZE=60" in sentence for sentence in found) == told
    assert len(found) == (use_case != "a8w8-int")


def test_the_environments_profile_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_PROFILE", "a3@9.2")
    with pytest.raises(ConfigError, match=r"a3@9\.2: ep_world_size=1"):
        make_plan(ENGINE, [LAYER], Options())
    # An option that the user wrote wins over the environment.
    make_plan(ENGINE, [LAYER], Options(profile="none"))
