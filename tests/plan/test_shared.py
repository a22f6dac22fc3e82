"""Shared experts run in the operator's call only where all of profile, weights and model allow it."""

import re
from dataclasses import replace

import pytest

from vllm_megamoe.checkpoint.formats import format_named
from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.shared import plan_shared
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.use_cases import UseCase

SHARED = SharedFacts(intermediate_hidden=2048, hidden=4096)
LAYER = MoeFacts("l", num_experts=64, topk=6, hidden=4096, intermediate_hidden=1024, shared=SHARED)
STEP7, STEP16 = ActivationFacts("swiglustep", limit=7.0), ActivationFacts("swiglustep", limit=16.0)

FUSED = {
    "two of the routed width": (LAYER, UseCase.A16W16, "none", 2),
    "fp8 on 950": (LAYER, UseCase.A8W8_FP, "950@9.2", 2),
    "fp4 on 950": (LAYER, UseCase.A4W4_FP, "950@9.2", 2),
    "four": (replace(LAYER, shared=replace(SHARED, intermediate_hidden=4096)), UseCase.A8W8_FP, "950@9.2", 4),
    # A limit of 0 and none are the same activation.
    "limit 0 beside none": (
        replace(LAYER, shared=replace(SHARED, activation=ActivationFacts(limit=0.0))),
        UseCase.A16W16,
        "none",
        2,
    ),
}

NOT_FUSED = {
    "A3": (LAYER, UseCase.A16W16, "a3@9.2", "none on A2 and A3"),
    "A2": (LAYER, UseCase.A8W8_INT, "a2@9.1", "none on A2 and A3"),
    "950 of 9.1": (LAYER, UseCase.A8W8_FP, "950@9.1", "no arguments"),
    "int8 in the twin": (LAYER, UseCase.A8W8_INT, "none", "FP8 and FP4 only, the twin BF16 too"),
    "int8 on 950": (LAYER, UseCase.A8W8_INT, "950@9.2", "FP8 and FP4 only"),
    "gate (Qwen)": (replace(LAYER, shared=replace(SHARED, gated=True)), UseCase.A16W16, "none", "gate"),
    "other hidden (Kimi-K3)": (replace(LAYER, shared=replace(SHARED, hidden=7168)), UseCase.A16W16, "none", "7168"),
    "other limit (Step-3.5)": (
        replace(LAYER, activation=STEP7, shared=replace(SHARED, activation=STEP16)),
        UseCase.A16W16,
        "none",
        r"swiglustep \(clamp 16\).*swiglustep \(clamp 7\)",
    ),
    "no multiple": (replace(LAYER, shared=replace(SHARED, intermediate_hidden=1536)), UseCase.A16W16, "none", "1536"),
    "narrower": (replace(LAYER, shared=replace(SHARED, intermediate_hidden=512)), UseCase.A16W16, "none", "512"),
    "five": (replace(LAYER, shared=replace(SHARED, intermediate_hidden=5120)), UseCase.A16W16, "none", "5 experts"),
    "other format": (
        replace(LAYER, shared=replace(SHARED, experts_format=format_named("fp8"))),
        UseCase.A16W16,
        "none",
        "fp8",
    ),
}


@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("option", ["auto", "on"])
def test_fused(case: str, option: str) -> None:
    layer, use_case, profile, pieces = FUSED[case]
    found = plan_shared(layer, use_case, find_profile(profile), Options(fuse_shared_experts=option))
    assert (found.mode, found.pieces, found.reason) == ("fused", pieces, "")


@pytest.mark.parametrize("case", NOT_FUSED)
@pytest.mark.parametrize("option", ["auto", "on", "off"])
def test_not_fused(case: str, option: str) -> None:
    layer, use_case, profile, reason = NOT_FUSED[case]
    found = plan_shared(layer, use_case, find_profile(profile), Options(fuse_shared_experts=option))
    assert (found.mode, found.pieces) == ("vllm", 0)
    expected = "fuse_shared_experts is off" if option == "off" else reason
    assert re.search(expected, found.reason)


def test_off_forces_vllms_path_and_no_shared_experts_are_none() -> None:
    off = Options(fuse_shared_experts="off")
    assert plan_shared(LAYER, UseCase.A16W16, find_profile("none"), off).mode == "vllm"
    alone = replace(LAYER, shared=None)
    for option in ("auto", "on", "off"):
        options = Options(fuse_shared_experts=option)
        assert plan_shared(alone, UseCase.A16W16, find_profile("none"), options).mode == "none"


MX4, MX8, A4 = (
    format_named(f"msmodelslim-{name}") for name in ("w4a8-mxfp", "w8a8-mxfp8", "w4a4-mxfp4")
)  # fmt: skip
INT4, INT8, GROUPS = (
    format_named(name)
    for name in ("msmodelslim-w4a8-dynamic", "msmodelslim-w8a8-dynamic", "compressed-tensors-w4a16-group")
)

# Format of the routed and of the shared experts, the routed use case, profile and topology -> what the shared ones run
# as, or a part of the reason why they are not fused (operator_readme.txt:492,578,593-594; recipes of facts 3.2).
TYPES: dict[str, tuple[object, object, UseCase, tuple[str, str], UseCase | str]] = {
    "FP8 beside FP4": (MX4, MX8, UseCase.A8W4_FP, ("950@9.2", "mte"), UseCase.A8W8_FP),
    "FP8 beside FP4 with FP4 rows": (A4, MX8, UseCase.A4W4_FP, ("950@9.2", "mte"), UseCase.A8W8_FP),
    "FP8 in blocks beside FP4 (DeepSeek-V4)": (
        format_named("deepseek-v4-fp4"), format_named("fp8-block-ue8m0"), UseCase.A8W4_FP, ("950@9.2", "mte"),
        UseCase.A8W8_FP),
    "other types on URMA": (MX4, MX8, UseCase.A8W4_FP, ("950@9.2", "urma"), "does not hold exactly beside a8w4-fp"),
    "alike on URMA": (MX4, MX4, UseCase.A8W4_FP, ("950@9.2", "urma"), UseCase.A8W4_FP),
    "FP4 as FP8 beside FP8": (MX8, MX4, UseCase.A8W8_FP, ("950@9.2", "urma"), UseCase.A8W8_FP),
    "INT4": (INT4, INT4, UseCase.A8W4_INT, ("none", "mte"), "takes FP8 and FP4 only"),
    "INT8 beside INT4": (INT4, INT8, UseCase.A8W4_INT, ("none", "mte"), "takes FP8 and FP4 only"),
    "BF16 beside INT4 in groups (Kimi-K2.5)": (
        GROUPS, format_named("bf16"), UseCase.A16W16, ("none", "mte"), UseCase.A16W16),
    "BF16 beside FP8": (MX8, format_named("bf16"), UseCase.A8W8_FP, ("950@9.2", "mte"), "format is bf16"),
    "BF16 rows feed no FP8": (format_named("bf16"), MX8, UseCase.A16W16, ("none", "mte"), UseCase.A16W16),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPES)
def test_their_own_type(case: str) -> None:
    routed, shared, use_case, (name, topology), expected = TYPES[case]
    layer = replace(LAYER, experts_format=routed, shared=replace(SHARED, experts_format=shared))
    found = plan_shared(layer, use_case, find_profile(name, topology), Options())
    if isinstance(expected, UseCase):
        assert (found.mode, found.use_case, found.pieces) == ("fused", expected, 2)
    else:
        assert (found.mode, found.use_case) == ("vllm", None)
        assert expected in found.reason


def test_a_scale_is_not_cut() -> None:
    narrow = replace(LAYER, intermediate_hidden=48, experts_format=MX8)
    shared = replace(SHARED, intermediate_hidden=96, experts_format=MX8)
    found = plan_shared(replace(narrow, shared=shared), UseCase.A8W8_FP, find_profile("none"), Options())
    assert "cannot be cut into 2" in found.reason
    one = replace(narrow, shared=replace(shared, intermediate_hidden=48))
    assert plan_shared(one, UseCase.A8W8_FP, find_profile("none"), Options()).mode == "fused"
