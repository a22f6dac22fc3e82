"""The six rows against the documents' scenario tables, written out again."""

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.sizes.memory import workspace_bytes
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

# operator_readme.txt: scenario table of A2/A3, MXFP constraints of 950.
# dispatch mode, its out dtype, weight type, formats, scales, bias
TABLE = {
    "a16w16": (0, None, None, (2, 2), False, False),
    "a8w8-int": (2, 258, 258, (29, 29), True, False),
    "a8w4-int": (2, 258, 285, (29, 29), True, True),
    "a8w8-fp": (4, 292, None, (2, 2), True, False),
    "a8w4-fp": (4, 292, 296, (51, 51), True, False),
    "a4w4-fp": (4, 296, 296, (29, 51), True, False),
}


def test_there_are_six() -> None:
    assert {str(use_case) for use_case in UseCase} == set(TABLE) == {str(use_case) for use_case in USE_CASES}


@pytest.mark.parametrize("name", TABLE)
def test_row(name: str) -> None:
    f = USE_CASES[UseCase(name)]
    formats = (f.format1, f.format2)
    row = (
        f.dispatch_quant_mode,
        f.dispatch_quant_out_dtype,
        f.weight_type,
        formats,
        f.has_scales,
        f.has_bias,
    )
    assert row == TABLE[name]


# operator_readme.txt:84-85 (A2/A3 and 950); torch_api.txt:42-48,467 (950 of 9.1: FP8 alone).
RUNS = {
    "a2@9.1": {"a16w16", "a8w8-int", "a8w4-int"},
    "a3@9.1": {"a16w16", "a8w8-int", "a8w4-int"},
    "950@9.1": {"a8w8-fp"},
    "a2@9.2": {"a16w16", "a8w8-int", "a8w4-int"},
    "a3@9.2": {"a16w16", "a8w8-int", "a8w4-int"},
    "950@9.2": {"a8w8-fp", "a8w4-fp", "a4w4-fp"},
}
WORKSPACE = BufferFacts(ep_world_size=2, num_experts=8, num_max_tokens_per_rank=64, num_topk=6, hidden=4096)


@pytest.mark.parametrize("profile", RUNS)
@pytest.mark.parametrize("name", TABLE)
def test_where_it_runs(profile: str, name: str) -> None:
    """The sizes ask the same table as the rules: nothing is computed for what the profile does not run."""
    found = find_profile(profile)
    if name in RUNS[profile]:
        assert workspace_bytes(found, WORKSPACE, intermediate_hidden=512, use_case=name) > 0
        return
    others = ", ".join(other for other in RUNS if name in RUNS[other])
    expected = f"expected one of {', '.join(sorted(RUNS[profile]))} "
    with pytest.raises(ConfigError, match=rf"use_case='{name}' with profile '{profile}'; {expected}.*{others}\.$"):
        workspace_bytes(found, WORKSPACE, intermediate_hidden=512, use_case=name)
