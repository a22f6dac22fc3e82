"""The pytest plugin as a user has it: in a pytest of its own, over files that know nothing of this package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from plugged import plugin_arguments

from vllm_megamoe.testing.formats.table import FORMATS
from vllm_megamoe.testing.tiny_models import TINY_MODELS

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A pytest over one file."""
    (folder / "test_theirs.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    # Without the working directory in front, as an installed pytest runs.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MEGAMOE")}
    return subprocess.run(
        [*command, *plugin_arguments(), *arguments, "test_theirs.py"],
        cwd=folder,
        env=variables | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_that_asks_for_nothing_is_as_before(tmp_path: Path) -> None:
    text = (
        "import os, sys\n"
        "def test_nothing_is_here():\n"
        "    assert not {'torch', 'numpy', 'vllm', 'transformers', 'torch_npu'} & set(sys.modules)\n"
        "    assert not [name for name in os.environ if name.startswith('VLLM_MEGAMOE')]\n"
    )
    found = run(tmp_path, text)
    assert found.returncode == 0, found.stdout + found.stderr


def test_help_and_fixtures_name_themselves(tmp_path: Path) -> None:
    assert "--megamoe-simulator=PROFILE" in run(tmp_path, "", "--help").stdout
    listed = run(tmp_path, "", "--fixtures").stdout
    assert all(f"megamoe_{name}" in listed for name in ("checkpoint", "twin", "simulator", "logprobs"))


@pytest.mark.parametrize("profile", ["a3", "a5@9.1"])
def test_a_product_that_is_none_ends_the_run_with_the_right_ones(tmp_path: Path, profile: str) -> None:
    found = run(tmp_path, "def test_it(): pass\n", "--megamoe-simulator", profile)
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"profile '{profile}'; expected one of a2@9.1" in found.stderr
    assert "Traceback" not in found.stdout + found.stderr


@pytest.mark.full
def test_names_that_are_none_are_errors_with_the_right_ones(tmp_path: Path) -> None:
    text = (
        "def test_family(megamoe_checkpoint): megamoe_checkpoint('qwen9')\n"
        "def test_format(megamoe_checkpoint): megamoe_checkpoint('qwen3_moe', 'w8a8')\n"
        "def test_twin(megamoe_twin): megamoe_twin('a9')\n"
        "def test_simulator(megamoe_simulator): megamoe_simulator('none')\n"
    )
    out = run(tmp_path, text).stdout
    assert "4 failed" in out
    assert f"family 'qwen9'; expected one of {', '.join(TINY_MODELS)}." in out
    assert f"format 'w8a8'; expected one of {', '.join(FORMATS)}." in out
    assert "'a9'" in out
    assert "profile 'none'; expected one of a2@9.1" in out


SIMULATED = """
import importlib, sys
import pytest, torch

def test_it_refuses_what_a_mock_takes(megamoe_simulator):
    npu = megamoe_simulator("a3@9.1")
    import torch_npu
    from cann_ops_transformer.ops import get_symm_buffer_for_mega_moe, mega_moe
    assert torch_npu is npu.torch_npu and mega_moe is npu.ops.mega_moe
    weight = torch.zeros(32, 64, dtype=torch.int8)
    torch_npu.npu.config.allow_internal_format = True
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(weight, 29)) == 29
    with pytest.raises(TypeError, match="unexpected|missing"):
        mega_moe(torch.zeros(1), no_such_argument=1)

def test_it_is_gone_afterwards():
    assert "torch_npu" not in sys.modules and "cann_ops_transformer" not in sys.modules

def test_the_twin_has_the_products_rules(megamoe_twin):
    ops = megamoe_twin("a3@9.1")
    with pytest.raises(Exception, match="a3@9.1"):
        ops.get_symm_buffer_for_mega_moe(None, 8, 16, 2, 1024, 1024, dispatch_quant_mode=4)
"""


@pytest.mark.full
def test_twin_and_simulator_until_the_test_ends(tmp_path: Path) -> None:
    found = run(tmp_path, SIMULATED)
    assert "3 passed" in found.stdout, found.stdout + found.stderr


WHOLE = """
import importlib.util, os, shutil, subprocess, sys
import torch, torch_npu

def test_the_session_has_an_npu(megamoe_simulator):
    assert str(torch.zeros(2, device="npu").device) == "cpu" and torch.npu.device_count() > 0
    assert importlib.util.find_spec("cann_ops_transformer.ops.comm_context")
    assert subprocess.run(["npu-smi"]).returncode == 0
    assert megamoe_simulator("950@9.2").torch_npu is torch_npu
    code = "import torch_npu, sys; print(torch_npu.__version__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "0.0+simulated"

def test_another_product_is_an_error(megamoe_simulator):
    megamoe_simulator("a3@9.1")
"""


@pytest.mark.full
def test_a_whole_session_on_a_simulated_npu(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import torch_npu  # a conftest may look for it\n")
    found = run(tmp_path, WHOLE, "--megamoe-simulator", "950@9.2")
    assert "1 failed, 1 passed" in found.stdout, found.stdout + found.stderr
    assert "pytest of their own with --megamoe-simulator a3@9.1" in found.stdout
