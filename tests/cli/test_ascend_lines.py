"""A line for vllm-ascend is known by its signs: it needs a product, and its ranks have rows of their own."""

from pathlib import Path

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model

GLM = {
    **QWEN3_30B_A3B,
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model", QWEN3_30B_A3B)


@pytest.mark.parametrize(
    "sign",
    [
        ("HCCL_BUFFSIZE=200", ""),
        ("export HCCL_OP_EXPANSION_MODE=AIV;", ""),
        ("VLLM_ASCEND_BALANCE_SCHEDULING=1", ""),
        ("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", ""),
        ("TASK_QUEUE_ENABLE=1", ""),
        ("", "--quantization ascend"),
        ("", """--additional-config '{"enable_fused_mc2": 1}'"""),
        ("", """--additional-config '{"mega_moe_max_tokens": 65536}'"""),
    ],
)
def test_a_product_is_asked_for(model: str, sign: tuple[str, str]) -> None:
    line = f"{sign[0]} vllm serve {model} -tp 8 -ep {sign[1]}".strip()
    found = run("plan", "--from", line)
    assert found.exit_code == 2
    assert "The command line is for Ascend" in found.stderr
    assert "a3@9.2" in found.stderr
    assert report("--from", line, "--profile", "a3@9.2")["profile"] == "a3@9.2"
    assert report("--from", line, "--profile", "none")["profile"] == "none"
    inside = """{"megamoe": {"profile": "a2@9.2"}}"""
    if not sign[1]:
        assert report("--from", f"{line} --additional-config '{inside}'")["profile"] == "a2@9.2"


def test_a_line_without_signs_is_planned_for_this_machine(model: str) -> None:
    assert report("--from", f"vllm serve {model} -tp 8 -ep")["profile"] == "none"


def test_ranks_of_vllm_ascend_have_rows_of_their_own(tmp_path: Path) -> None:
    """C2's rule is vLLM's own: vllm-ascend splits the rows before every MoE layer."""
    model = write_model(tmp_path / "glm", GLM)
    line = f"vllm serve {model} -tp 4 -dp 2 -ep"
    on_cpu = report("--from", line, "--profile", "a3@9.2")
    assert any("replicated" in violation["got"] for violation in on_cpu["violations"])
    assert report("--from", f"{line} --quantization ascend", "--profile", "a3@9.2")["holds"]
    assert report(model, "--tp", "4", "--dp", "2", "--profile", "a3@9.2", "--backend", "cann")["holds"]


def test_what_vllm_ascend_reads_is_translated_or_named(model: str) -> None:
    config = """{"enable_fused_mc2": 1, "mega_moe_max_tokens": 65536, "enable_flashcomm1": true, "weight_nz_mode": 1}"""
    line = (
        f"HCCL_BUFFSIZE=20 VLLM_ASCEND_ENABLE_FUSED_MC2=1 vllm serve {model} -tp 8 -ep --quantization ascend "
        f"--additional-config '{config}'"
    )
    found = report("--from", line, "--profile", "a3@9.2")
    changes = {step["what"]: step["action"] for step in found["corrections"]}
    assert changes["--quantization megamoe"] == "set"
    assert changes["VLLM_ASCEND_ENABLE_FUSED_MC2=1"] == "drop"
    assert changes["--additional-config enable_fused_mc2 (1)"] == "drop"
    assert changes["--additional-config mega_moe_max_tokens (65536)"] == "drop"
    assert changes["HCCL_BUFFSIZE=200"] == "set"
    named = next(note for note in found["notes"] if "not read here" in note)
    assert "enable_flashcomm1" in named
    assert "weight_nz_mode" in named
