"""What the Ascend lane rejects in the config stage, by name, with the rest of what is wrong in the same error."""

from typing import Any

import pytest
from contract.scenes.refusals import CASES, RELEASES, VARIABLES

SAID: dict[str, tuple[str, ...]] = {
    "no expert parallelism": (
        "no expert parallelism; expected whole experts on every rank",
        "--enable-expert-parallel",
    ),
    "one rank": ("ep_world_size=1",),
    "lora": ("LoRA on experts (experts)", "Drop experts from --lora-target-modules"),
    "eplb": ("expert-parallel load balancing is on", "Drop --enable-eplb"),
    "their map": ("eplb_config.expert_map_path = 'map.json'",),
    "mix_placement": ("mix_placement = True",),
    "xlite": ("xlite_graph_config.enabled = true",),
    "fused_mc2": ("enable_fused_mc2 = 2",),
    "legacy": ("enable_fused_mc2 = 1",),
    "their bound": ("mega_moe_max_tokens = 4096", "max_recv_token_num"),
    "their combine": ("combine_quant_mode = 4",),
    "profile": ("profile = '950@9.2'; expected 'a3@9.1', which this machine is",),
    "no profile": ("profile = 'none'; expected 'a3@9.1', which this machine is",),
    "backend": ("backend = 'cpu'; expected 'auto' or 'cann' on an NPU",),
    "option": ("'use_cas' is not an option; did you mean 'use_case'",),
    "consumer": ("a KV consumer that skips the exchange of row counts", "FULL_DECODE_ONLY"),
    "backend of experts": ("--moe-backend triton; expected auto", "Drop --moe-backend."),
    "backend of a draft": ("--speculative-config moe_backend triton; expected auto",),
    "dtype": ("float16; expected bfloat16",),
    "several": (
        "6 rule(s) violated",
        "enable_fused_mc2 = 2",
        "mix_placement = True",
        "profile = 'a2@9.1'; expected 'a3@9.1'",
        "'use_cas' is not an option",
        "LoRA on experts",
        "float16; expected bfloat16",
    ),
    "VLLM_ASCEND_ENABLE_FUSED_MC2": ("VLLM_ASCEND_ENABLE_FUSED_MC2=1", "Unset VLLM_ASCEND_ENABLE_FUSED_MC2"),
    "VLLM_MEGAMOE_PROFILE": ("VLLM_MEGAMOE_PROFILE = 'a2@9.2'; expected 'a3@9.1'",),
    "HCCL_BUFFSIZE": ("HCCL_BUFFSIZE=1; expected at least",),
    "0.30.0rc1": (
        "vLLM 0.30.0 with vllm-ascend 0.30.0rc1 on npu; expected",
        "vLLM 0.30 with vllm-ascend 0.30.0rc2 on npu",
    ),
    "0.27.1rc1": ("with vllm-ascend 0.27.1rc1 on npu; expected", "vllm-ascend 0.30.0rc2"),
    "0.28.0rc1": ("with vllm-ascend 0.28.0rc1 on npu; expected", "vllm-ascend 0.30.0rc2"),
    "0.29.0rc1": ("with vllm-ascend 0.29.0rc1 on npu; expected", "vllm-ascend 0.30.0rc2"),
    "0.31.0": ("with vllm-ascend 0.31.0 on npu; expected", "vllm-ascend 0.30.0rc2"),
    "wide": ("enable_fused_mc2 = 2", "intermediate_hidden = 4096"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    from contract.support.launch import run

    return {scene: found[0] for scene, found in run("a3@9.1", ["refusals", "order"]).items()}


@pytest.fixture(scope="module")
def said(answers: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = answers["refusals"]
    return found


def test_every_case_is_judged(said: dict[str, str]) -> None:
    assert set(SAID) == {*CASES, *VARIABLES, *RELEASES, "wide", "backend of a draft"}


def test_what_holds_is_taken(said: dict[str, str]) -> None:
    assert (said["fine"], said["draft"]) == ("", "")


@pytest.mark.parametrize("case", SAID)
def test_is_rejected_by_name(case: str, said: dict[str, str]) -> None:
    missing = [part for part in SAID[case] if part not in said[case]]
    assert not missing, said[case]


def test_the_flag_never_becomes_theirs(answers: dict[str, Any]) -> None:
    """Registered after vllm-ascend's classes, on a checkpoint that one of them claims whatever the user said."""
    found = answers["order"]
    assert found["theirs"] == "ascend"
    assert found["order"][0] == "megamoe"
    assert found["order"].count("megamoe") == 1
    # Were it theirs now, nothing would be said; ours cannot tell what such a section means, and says so.
    assert found["said"].startswith("--quantization megamoe cannot serve this")
    assert "experts in the format 'an unnamed quantisation'" in found["said"]
