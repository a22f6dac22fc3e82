"""`doctor` on a host with NPUs: both sides of the operator of one build, the product, one fingerprint for all nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.ascend_host import COMMON, HOST, NEWER, kernels, wrapper
from cli.command import QWEN3_30B_A3B, write_model
from cli.command import report as plan_report
from cli.test_doctor import ASCEND, CPU, named

from vllm_megamoe.cli.doctor.ascend_host import AscendHost, read_header, read_host, read_wrapper
from vllm_megamoe.cli.doctor.environment import Environment, fingerprint
from vllm_megamoe.cli.doctor.model import Served
from vllm_megamoe.cli.doctor_command import examine

# As both revisions declare it (aclnn_mega_moe.h), cut short.
HEADER = """ACLNN_API aclnnStatus aclnnMegaMoeGetWorkspaceSize(
    const aclTensor *context, const char *activation, {activation}, aclTensor *yOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);
"""
WRAPPER = """
import no_such_module

def get_symm_buffer_for_mega_moe(group, num_experts: int, *, comm_alg: str = ""{create}):
    pass

def mega_moe(x, topk_ids, *, activation="swiglu"):
    pass
"""


def on(**changes: Any) -> Environment:
    return replace(ASCEND, host=replace(HOST, **changes))


@pytest.mark.parametrize(
    ("env", "name", "state", "words"),
    [
        (on(), "NPUs", "ok", "8"),
        (on(npus=0), "NPUs", "missing", "--device /dev/davinci_manager"),
        (on(), "driver", "ok", "25.5.0"),
        (on(firmware=""), "firmware", "note", "npu-smi"),
        (on(), "pairing", "ok", "vLLM 0.30.0+empty with vllm-ascend 0.30.0rc2"),
        (replace(ASCEND, versions={**ASCEND.versions, "vllm-ascend": "0.27.1"}), "pairing", "wrong", "0.30.0rc2"),
        (on(), "operator", "ok", "revision 9.1 by its arguments, installed 2026-07-21"),
        (on(wrapper=None), "operator", "missing", "cann_ops_transformer"),
        (on(wrapper=wrapper(COMMON | NEWER)), "operator", "ok", "revision 9.2"),
        (on(wrapper=wrapper(COMMON | NEWER | {"scales", "magic"})), "operator", "note", "every profile: magic, scales"),
        (on(), "one build", "ok", "kernels of 9.1"),
        (on(), "one build", "ok", "cann_ops_transformer 1.0.0 beside CANN 9.1.0 (ops_transformer 9.1.0 20260721)"),
        (on(kernels=None), "one build", "note", "no file tells"),
        (on(wrapper=wrapper(COMMON | NEWER)), "one build", "wrong", "EZ1001"),
        (on(kernels=kernels("activation", "activationParams")), "one build", "wrong", "EZ1001"),
        (on(), "product", "ok", "profile a3@9.1: a16w16, a8w4-int, a8w8-int; EP one of 2, 4, 8, 16, 32"),
        (on(), "product", "ok", "2026-08-21"),
        (on(built_for="_310P"), "product", "wrong", "one of A2, A3, A5"),
    ],
)
def test_what_a_host_is_told(env: Environment, name: str, state: str, words: str) -> None:
    check = named(examine(env), name)
    assert check.state == state
    assert words in f"{check.found} {check.remedy}"


def test_a_950_with_the_newer_operator() -> None:
    both = {"wrapper": wrapper(COMMON | NEWER), "kernels": kernels("activation", "activationParams")}
    check = named(examine(on(built_for="A5", **both)), "product")
    assert "profile 950@9.2: a4w4-fp, a8w4-fp, a8w8-fp" in check.found
    assert "shared experts in the call: up to 4" in check.found


def test_one_fingerprint_for_all_nodes() -> None:
    """Places, dates and variables of a node's own do not count; what must be alike does."""
    same = replace(ASCEND, variables={**ASCEND.variables, "HOSTNAME": "node7", "ASCEND_HOME_PATH": "/opt/cann"})
    assert HOST.wrapper is not None
    moved = on(wrapper=replace(HOST.wrapper, place="/elsewhere", date="2026-11-01"))
    assert len(fingerprint(ASCEND)) == 16
    assert fingerprint(ASCEND) == fingerprint(same) == fingerprint(moved)
    others = [
        on(driver="25.5.1"),
        on(wrapper=replace(HOST.wrapper, digest="000000000000")),
        replace(ASCEND, cann_version="9.2.0"),
        replace(ASCEND, variables={**ASCEND.variables, "HCCL_BUFFSIZE": "1024"}),
        replace(ASCEND, versions={**ASCEND.versions, "torch-npu": "2.10.0.post6"}),
    ]
    assert len({fingerprint(env) for env in (ASCEND, CPU, *others)}) == 7
    assert examine(ASCEND).fingerprint == fingerprint(ASCEND)


def test_files_of_a_host(tmp_path: Path) -> None:
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / "dev" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    for name in ("driver", "firmware"):
        record = tmp_path / "usr" / "local" / "Ascend" / name / "version.info"
        record.parent.mkdir(parents=True)
        record.write_text(f"Version=25.{len(name)}\nancestor=x\n")
    home = tmp_path / "cann"
    for place in ("include/aclnnop", "opp/vendors/custom/op_api/include", "share/info/ops_transformer"):
        (home / place).mkdir(parents=True)
    (home / "share/info/ops_transformer/version.info").write_text("Version=9.1.0\ntimestamp=20260721\n")
    (home / "include/aclnnop/aclnn_mega_moe.h").write_text(HEADER.format(activation="float activationClamp"))
    found = read_host(str(home), tmp_path)
    assert (found.npus, found.driver, found.firmware) == (2, "25.6", "25.8")
    assert found.records == {"ops_transformer": "9.1.0 20260721"}
    assert found.kernels is not None
    assert found.kernels.names == {"context", "activation", "activationClamp", "yOut", "workspaceSize", "executor"}
    vendors = home / "opp/vendors/custom/op_api/include/aclnn_mega_moe.h"
    vendors.write_text(HEADER.format(activation="const aclFloatArray *activationParams"))
    found = read_host(str(home), tmp_path)
    assert found.kernels is not None
    assert found.kernels.place == str(vendors)
    assert "activationParams" in found.kernels.names
    assert read_host(None, tmp_path / "nothing") == AscendHost(wrapper=found.wrapper, built_for=found.built_for)


def test_the_wrapper_is_read_and_not_imported(tmp_path: Path) -> None:
    place = tmp_path / "mega_moe.py"
    place.write_text(WRAPPER.format(create=", topk_weights_type: int = 0"))
    found = read_wrapper(place)
    assert found is not None
    assert found.names == {"group", "num_experts", "comm_alg", "topk_weights_type", "x", "topk_ids", "activation"}
    assert len(found.digest) == 12
    place.write_text("def mega_moe(x): pass")
    assert read_wrapper(place) is None
    place.write_text("int other(int);")
    assert read_header(place) is None


@pytest.mark.parametrize(
    ("value", "state", "words"),
    [
        ("512", "ok", "present 512 MB"),
        ("", "ok", "present 200 MB (HCCL's default)"),
        ("20", "wrong", "present 20 MB"),
    ],
)
def test_the_window_that_a_model_needs_beside_the_one_it_gets(
    value: str, state: str, words: str, tmp_path: Path
) -> None:
    """As `plan` counts it for the product and the operator of this host."""
    model = write_model(tmp_path / "model", QWEN3_30B_A3B)
    variables = {name: text for name, text in ASCEND.variables.items() if name != "HCCL_BUFFSIZE"}
    env = replace(ASCEND, variables=variables | ({"HCCL_BUFFSIZE": value} if value else {}))
    found = examine(env, Served(model, tensor_parallel=8))
    needed = plan_report(model, "--tp", "8", "--profile", "a3@9.1")["hccl_buffsize_mb"]
    check = named(found, "window")
    assert (check.state, f"needed {needed} MB" in check.found, words in check.found) == (state, True, True)
    assert check.remedy == ("export HCCL_BUFFSIZE=200" if state == "wrong" else "")
    assert found.ok is (state == "ok")


def test_a_plan_that_does_not_hold_here_is_told(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", QWEN3_30B_A3B)
    found = examine(ASCEND, Served(model, tensor_parallel=3))
    check = named(found, "plan")
    assert (check.state, found.ok) == ("wrong", False)
    assert "cannot be served under profile a3@9.1 on 3 ranks" in check.found
    assert check.remedy.startswith("vllm-megamoe plan")
