"""What each checkpoint runs as: the answers of tests/formats, by config alone, on every product and with consent."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from formats.cases import BY_NAME, FIXTURES, GENERATED, Case

from vllm_megamoe.checkpoint.formats import FORMATS, OWN_PREFIX, Known, format_named
from vllm_megamoe.checkpoint.recognise import SIDE_FILES
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.model import ModelFacts, Speculation, read_model
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import draft_plan, violations_of
from vllm_megamoe.plan.verdict import Rejected
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.use_cases import UseCase

ALONE = EngineFacts("bfloat16", max_num_batched_tokens=8)
PAIR = replace(ALONE, data_parallel=2, expert_parallel=True)
LAYER = MoeFacts("model.layers.0.mlp.experts", 16, 2, 4096, 1024, index=0)

ONLY_NUMBERS_TELL = {
    "ms-w4a8-group": "consent",
    "ms-w4a8-old-group": "consent",
    "fp8-block-unclaimed-powers": "consent",
    "qwen3_moe__msmodelslim__w4a8_dynamic_pergroup": "consent",
    # The config claims powers of two, or a dtype that every number fits: tested at load, an error there.
    "fp8-block-false-claim": "exact",
    "fp16": "exact",
}
"""What a config says of checkpoints whose answer hangs on their numbers."""

REFUSED_FOR_ANOTHER_REASON = {"bf16-llama4": "refused"}
"""Its experts could be held, its router cannot (weights on the experts' input)."""


def layers_of(folder: Path, draft: bool = False) -> tuple[MoeFacts, ...]:
    config = json.loads((folder / "config.json").read_text())
    files = {name: json.loads((folder / name).read_text()) for name in SIDE_FILES if (folder / name).exists()}
    return read_model(config, files, speculative=Speculation("mtp") if draft else None).layers


def ask(layers: Any, engine: EngineFacts = ALONE, **options: Any) -> Plan | Rejected[Plan]:
    return draft_plan(engine, layers, Options(**options))


def answer_of(layers: Any) -> str:
    """exact, consent or refused, under profile none."""
    if isinstance(ask(layers), Plan):
        return "exact"
    return "consent" if isinstance(ask(layers, requant="allow"), Plan) else "refused"


def expected_answer(case: Case) -> str:
    return {**ONLY_NUMBERS_TELL, **REFUSED_FOR_ANOTHER_REASON}.get(case.name, case.answer)


MIXED_WITH_BF16 = {"ms-unlisted-layer", "ct-ignored-layer"}
"""Refused as they are; with consent INT8 and BF16 layers have BF16 in common."""


@pytest.mark.parametrize("case", GENERATED, ids=str)
def test_generated_checkpoints(case: Case, tmp_path: Path) -> None:
    folder = case.place(tmp_path)
    layers = layers_of(folder)
    found = answer_of(layers)
    if case.name in MIXED_WITH_BF16:
        assert found == "consent"
        (told,) = violations_of(ask(layers))
        assert "layer 1 (a16w16 from bf16)" in told.got
        assert "layers 0, 2-3 (a8w8-int" in told.got
        return
    assert found == expected_answer(case)
    verdict = ask(layers)
    if isinstance(verdict, Plan) and case.name not in ONLY_NUMBERS_TELL:
        ran = {(case.kind_of(folder, plan.facts.index), plan.use_case.value) for plan in verdict.layers}
        assert ran == set(case.auto.items())
        assert {plan.loss for plan in verdict.layers} == {""}
        assert not any(plan.padding for plan in verdict.layers)


@pytest.mark.parametrize("case", FIXTURES, ids=str)
def test_fixtures_of_real_tools(case: Case, shared_dir: Path) -> None:
    layers = layers_of(case.place(shared_dir), draft=True)
    assert answer_of(layers) == expected_answer(case)
    verdict = ask(layers)
    if isinstance(verdict, Plan):
        assert {plan.use_case.value for plan in verdict.layers if not plan.facts.draft} == set(case.auto.values())


# Format -> what `auto` takes without consent on none, a3@9.1, 950@9.1 and 950@9.2; empty where consent is needed. By
# facts/checkpoints.md 4: the exact mapping with the fewest bytes that the product has.
AUTO = {
    "bf16": ("a16w16", "a16w16", "", ""),
    "msmodelslim-w8a8-dynamic": ("a8w8-int", "a8w8-int", "", ""),
    "msmodelslim-w4a8-dynamic": ("a8w4-int", "a8w4-int", "", ""),
    "compressed-tensors-w4a16-zeros": ("a8w8-int", "a8w8-int", "", ""),
    "msmodelslim-w4a8-dynamic-group": ("", "", "", ""),
    "fp8-block": ("", "", "", ""),
    "fp8-block-ue8m0": ("a8w8-fp", "a16w16", "a8w8-fp", "a8w8-fp"),
    "mxfp8": ("a8w8-fp", "a16w16", "a8w8-fp", "a8w8-fp"),
    "deepseek-v4-fp4": ("a8w4-fp", "a16w16", "a8w8-fp", "a8w4-fp"),
    "msmodelslim-w4a4-mxfp4": ("a4w4-fp", "a16w16", "a8w8-fp", "a4w4-fp"),
    "modelopt-nvfp4": ("", "", "", ""),
    "compressed-tensors-w4a16-group": ("", "", "", ""),
}
# The same with consent, where it is needed: what loses least (losses of profiles/losses.py).
CONSENTED = {
    "bf16": (None, None, "a8w8-fp", "a8w8-fp"),
    "msmodelslim-w8a8-dynamic": (None, None, "a8w8-fp", "a8w8-fp"),
    "msmodelslim-w4a8-dynamic": (None, None, "a8w8-fp", "a8w8-fp"),
    "msmodelslim-w4a8-dynamic-group": ("a8w8-int", "a8w8-int", "a8w8-fp", "a8w8-fp"),
    "fp8-block": ("a16w16", "a16w16", "a8w8-fp", "a8w8-fp"),
    "modelopt-nvfp4": ("a16w16", "a16w16", "a8w8-fp", "a8w8-fp"),
    "compressed-tensors-w4a16-group": ("a16w16", "a16w16", "a8w8-fp", "a8w8-fp"),
}
PROFILES = ("none", "a3@9.1", "950@9.1", "950@9.2")


def on(profile: str, form: str, **options: Any) -> Plan | Rejected[Plan]:
    layer = replace(LAYER, experts_format=Known(form), topk=6)
    return ask([layer], PAIR, profile=profile, max_padding_overhead=9.0, **options)


@pytest.mark.parametrize("form", AUTO)
@pytest.mark.parametrize("place", range(4), ids=PROFILES)
def test_auto_takes_the_exact_one_with_the_fewest_bytes(form: str, place: int) -> None:
    verdict, expected = on(PROFILES[place], form), AUTO[form][place]
    if expected:
        assert isinstance(verdict, Plan)
        (plan,) = verdict.layers
        assert (plan.use_case.value, plan.loss, plan.strict) == (expected, "", True)
        return
    (told,) = [v for v in violations_of(verdict) if v.expected == "consent"]
    assert "of the weights' rms, a layer's output" in told.got
    assert '"requant": "allow"' in told.remedy
    consented = on(PROFILES[place], form, requant="allow")
    assert isinstance(consented, Plan)
    (plan,) = consented.layers
    assert plan.loss
    assert not plan.strict
    if form in CONSENTED:
        assert plan.use_case.value == CONSENTED[form][place]


FOREIGN = [form for form in FORMATS.values() if form.loads and not form.name.startswith(OWN_PREFIX)]


@pytest.mark.parametrize("form", FOREIGN, ids=lambda form: form.name)
@pytest.mark.parametrize("profile", ["none", "a2@9.2", "a3@9.1", "950@9.1", "950@9.2"])
def test_every_format_that_loads_runs_everywhere_with_consent(form: Any, profile: str) -> None:
    assert isinstance(on(profile, form.name, requant="allow"), Plan)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_a_named_use_case(use_case: str) -> None:
    """From BF16 all, from others what the table of losses has; a way that does not exist names those that do."""
    assert isinstance(on("none", "bf16", use_case=use_case, requant="allow"), Plan)
    for form, ways in (("mxfp8", {"a8w8-fp", "a16w16", "a8w8-int"}), ("quark-int8", {"a8w8-int", "a16w16", "a8w8-fp"})):
        verdict = on("none", form, use_case=use_case, requant="allow")
        assert isinstance(verdict, Plan) == (use_case in ways)
        if isinstance(verdict, Rejected):
            (told,) = verdict.violations
            assert told.got == f"{use_case} from {form} experts"
            assert set(told.expected.split(" (")[0].removeprefix("one of ").split(", ")) == ways


@pytest.mark.parametrize("use_case", UseCase)
@pytest.mark.parametrize("profile", ["none", "a3@9.1", "950@9.1", "950@9.2"])
def test_operands_stay_what_they_are(use_case: UseCase, profile: str) -> None:
    """The package's own format holds the operands of one use case: it runs where that does, and nowhere else."""
    form, runs = f"{OWN_PREFIX}{use_case.value}", use_case in limits_of(find_profile(profile)).use_cases.value
    assert isinstance(on(profile, form), Plan) == runs
    for asked in ("auto", "a8w8-fp", "a16w16"):
        verdict = on(profile, form, use_case=asked, requant="allow")
        assert isinstance(verdict, Plan) == (runs and asked in ("auto", use_case.value))
        assert all(violation.remedy for violation in violations_of(verdict))


def test_float32_is_the_twins_a16w16_of_every_format() -> None:
    engine = replace(ALONE, dtype="float32")
    for form in FORMATS.values():
        layer = replace(LAYER, experts_format=format_named(form.name))
        verdict = ask([layer], engine)
        assert isinstance(verdict, Plan) == (form in FOREIGN or form.name == f"{OWN_PREFIX}a16w16")
        if isinstance(verdict, Plan):
            assert (verdict.layers[0].use_case.value, verdict.layers[0].loss) == ("a16w16", "")


def test_the_table_of_answers_is_whole() -> None:
    assert set(ONLY_NUMBERS_TELL) | set(REFUSED_FOR_ANOTHER_REASON) | MIXED_WITH_BF16 <= set(BY_NAME)


def read(folder: Path) -> ModelFacts:
    config = json.loads((folder / "config.json").read_text())
    files = {name: json.loads((folder / name).read_text()) for name in SIDE_FILES if (folder / name).exists()}
    return read_model(config, files, speculative=Speculation("mtp"))


def test_a_layer_that_the_description_does_not_list_is_told_once(tmp_path: Path) -> None:
    """Not where it is listed as FLOAT, nor where no description is."""
    (said,) = read(BY_NAME["ms-unlisted-layer"].place(tmp_path)).warnings
    assert said == (
        "The quantisation's description does not list the experts of model.layers.N.mlp.experts (N = 1): they are read "
        "as BF16."
    )
    for name in ("ms-w8a8-dynamic-deepseek-float-draft", "ms-w4a16", "bf16-deepseek", "ms-w4a8-dynamic-deepseek-v4"):
        assert read(BY_NAME[name].place(tmp_path)).warnings == ()
