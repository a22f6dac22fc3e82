"""VLLM_MEGAMOE_SIMULATE: where it takes effect, what it says, what it leaves alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_megamoe.environment import choose_profile, simulated_profile
from vllm_megamoe.errors import ConfigError

TESTS = Path(__file__).parents[1]

SERVE = """
import logging, sys, torch.distributed as dist
from pathlib import Path
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
sys.path.insert(0, {tests!r})
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe, settings

def rank(r, place):
    dist.init_process_group("gloo", init_method="file://" + place, rank=r, world_size=2)
    case = make_case("a16w16", Shape((6, 6), 4, 1024, 1024, 2))
    buffer = get_symm_buffer_for_mega_moe(dist.group.WORLD, **buffer_arguments(case))
    y, counts = mega_moe(**call_arguments(case, r, Form()), sym_buffer=buffer)
    with settings(profile="none", backend="cpu"):
        plain = get_symm_buffer_for_mega_moe(dist.group.WORLD, **buffer_arguments(case))
        want, _ = mega_moe(**call_arguments(case, r, Form()), sym_buffer=plain)
    print(isinstance(buffer, SymmBuffer), buffer.ccl_buffer_size > 0, bool((y == want).all()))
    print(sorted(name for name in sys.modules if name.startswith(("torch_npu", "cann_ops"))), flush=True)

if __name__ == "__main__":
    rank(int(sys.argv[1]), sys.argv[2])
"""


def start(code: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_simulated_product_runs_behind_the_public_functions(tmp_path: Path) -> None:
    code, place = SERVE.format(tests=str(TESTS)), str(tmp_path / "store")
    ranks = [start(code, str(r), place, VLLM_MEGAMOE_SIMULATE="a3@9.1") for r in range(2)]
    for process in ranks:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        lines = output.splitlines()
        assert lines[-2:] == ["True True True", "[]"]
        assert next(line for line in lines if "SIMULATING a3@9.1 on the CPU" in line).startswith("WARNING ")


REJECTED = """
import os, sys, torch.distributed as dist
sys.path.insert(0, {tests!r})
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings

r, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + place, rank=r, world_size=2)
case = make_case("a8w8-int", Shape((6, 6), 4, 1024, 1024, 2))
with settings(timeout_s=3600):
    buffer = get_symm_buffer_for_mega_moe(dist.group.WORLD, **buffer_arguments(case))
given = call_arguments(case, r, Form(blocks=True))
rows, blocks = call_arguments(case, r, Form())["l1_weights"], given["l1_weights"]
short = [given["l2_weights_sf"][0], given["l2_weights_sf"][1][:512]]
changes = (
    {{"l1_weights": [None]}},
    {{"topk_weights": given["topk_weights"].bfloat16()}},
    {{"activation": "gelu"}},
    {{"l1_weights": [blocks[0], rows[1]]}},
    {{"l2_weights_sf": short}},
)
for change in changes:
    try:
        mega_moe(**given | (change if r == 1 else {{}}), sym_buffer=buffer)
    except (ValueError, RuntimeError) as e:
        print(type(e).__name__, e)
y, _ = mega_moe(**given, sym_buffer=buffer)
print(bool(y.any()), flush=True)
"""


def test_what_the_adapter_rejects_reaches_the_other_ranks(tmp_path: Path) -> None:
    """They would wait for an hour, which is longer than this test's patience."""
    code, place = REJECTED.format(tests=str(TESTS)), str(tmp_path / "store")
    ranks = [start(code, str(r), place, VLLM_MEGAMOE_SIMULATE="a3@9.2") for r in range(2)]
    words = [
        "l1_weights[0]=None; expected a tensor",
        "topk_weights.dtype=BF16; expected FLOAT",
        "activation='gelu'",
        # The simulated device would take both, and compute from wrong bytes (simulator.test_silent_faults).
        "l1_weights[1]=ND [1024, 2048] torch.int8; expected FRACTAL_NZ",
        "l2_weights_sf.shape=[512]; expected [1024]",
    ]
    for rank, process in enumerate(ranks):
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        # torch 2.10 lets gloo say there whom it is connected to.
        *lines, last = [line for line in output.splitlines() if not line.startswith("[Gloo]")]
        assert last == "True"
        for line, reason in zip(lines, words, strict=True):
            assert reason in line
            assert line.startswith("OperatorError" if rank == 1 else "PeerError"), line


IMPORT = """
import importlib
from vllm_megamoe.simulator import device
device("a3@9.1")
for package in ("torch_npu", "cann_ops_transformer", "cann_ops_transformer.ops"):
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as e:
        print(e)
"""


def test_nobody_else_can_import_the_packages() -> None:
    output, errors = start(IMPORT, VLLM_MEGAMOE_SIMULATE="a3@9.1").communicate(timeout=120)
    lacking = ["torch_npu", "cann_ops_transformer", "cann_ops_transformer"]
    assert output.splitlines() == [f"No module named '{package}'" for package in lacking], errors


def test_the_simulated_product_is_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_SIMULATE", "950@9.2")
    monkeypatch.delenv("VLLM_MEGAMOE_PROFILE", raising=False)
    assert (simulated_profile(), choose_profile(None), choose_profile("950@9.2")) == ("950@9.2",) * 3
    with pytest.raises(ConfigError, match=r"profile='a3@9.1' with VLLM_MEGAMOE_SIMULATE='950@9.2'"):
        choose_profile("a3@9.1")
    monkeypatch.setenv("VLLM_MEGAMOE_PROFILE", "a2@9.1")
    with pytest.raises(ConfigError, match=r"VLLM_MEGAMOE_PROFILE='a2@9.1' with VLLM_MEGAMOE_SIMULATE='950@9.2'"):
        choose_profile(None)


def test_settings_cannot_name_another_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_megamoe.ops import settings

    monkeypatch.setenv("VLLM_MEGAMOE_SIMULATE", "950@9.2")
    with pytest.raises(ConfigError, match="profile='none'"), settings(profile="none"):
        pass
    with settings(profile="none", backend="cpu") as config:
        assert config.profile == "none"


@pytest.mark.parametrize("name", ["a3", "none", "310p@9.1"])
def test_what_cannot_be_simulated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_SIMULATE", name)
    with pytest.raises(ConfigError, match=f"VLLM_MEGAMOE_SIMULATE={name!r}; expected one of a2@9.1"):
        simulated_profile()


def test_without_the_switch_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_MEGAMOE_SIMULATE", raising=False)
    monkeypatch.setenv("VLLM_MEGAMOE_PROFILE", "a2@9.1")
    assert (simulated_profile(), choose_profile(None), choose_profile("a3@9.1")) == ("", "a2@9.1", "a3@9.1")
