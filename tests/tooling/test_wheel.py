"""The package builds as a wheel, and what is installed from it is whole and registers with vLLM."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest


def run(command: list[str], **environment: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment or None)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def source(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would commit: nothing else in the tree helps, and the build leaves nothing there."""
    target = tmp_path_factory.mktemp("source")
    listed = run(["git", "-C", str(repository), "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for name in filter(None, listed.split("\0")):
        if name.startswith("vllm_megamoe/") or "/" not in name:
            if not (repository / name).exists():
                continue
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((repository / name).read_bytes())
    return target


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(target), str(source)])
    (found,) = target.glob("*.whl")
    return found


def test_holds_every_module_and_nothing_else(wheel: Path, source: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "vllm_megamoe").rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert names >= expected
    assert {name.split("/")[0] for name in names} == {"vllm_megamoe"}


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = archive.read(f"{folder}/METADATA").decode()
    entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "Apache License" in archive.read(f"{folder}/licenses/LICENSE").decode()
    assert "[vllm.general_plugins]\nmegamoe = vllm_megamoe.plugin:register\n" in entry_points
    assert "[pytest11]\nmegamoe = vllm_megamoe.testing.plugin\n" in entry_points
    assert "[console_scripts]\nvllm-megamoe = vllm_megamoe.cli.app:main\n" in entry_points


@pytest.mark.full
def test_installs_and_registers(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel)])
    code = (
        "import vllm_megamoe, importlib.metadata as m;"
        "point, *_ = m.entry_points(group='vllm.general_plugins', name='megamoe');"
        "point.load()(); point.load()();"
        "from vllm.model_executor.layers.quantization import get_quantization_config as get;"
        "print(vllm_megamoe.__file__, get('megamoe').__module__)"
    )
    found = run([sys.executable, "-P", "-c", code], PYTHONPATH=str(tmp_path), PATH="/usr/bin:/bin", HOME=str(tmp_path))
    file, module = found.split()[-2:]
    assert file == str(tmp_path / "vllm_megamoe" / "__init__.py")
    assert module == "vllm_megamoe.lanes.quant_config"


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A copy: what a build leaves behind would be found by the wheel's.
    target, copy = tmp_path_factory.mktemp("sdist"), tmp_path_factory.mktemp("copy") / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(target)!r})"
    found = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    (made,) = target.glob("*.tar.gz")
    return made


@pytest.mark.full
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_is_used_from_a_fresh_environment(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Installed by its own pip; the packages beside it are those of this environment, its own one left out."""
    archive: Path = request.getfixturevalue(kind)
    if kind == "sdist":
        with tarfile.open(archive) as listed:
            assert any(name.endswith("vllm_megamoe/py.typed") for name in listed.getnames())
    run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "fresh")])
    python = tmp_path / "fresh" / "bin" / "python"
    (home,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    # Read behind the fresh folder, and without what its .pth files would add: the clone itself.
    (home / "partners.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-index"]
    run([*pip, "--no-build-isolation", "--force-reinstall", str(archive)])
    clean = {"PATH": f"{python.parent}{os.pathsep}/usr/bin:/bin", "HOME": str(tmp_path)}
    where = run([str(python), "-P", "-c", "import vllm_megamoe; print(vllm_megamoe.__file__)"], **clean).strip()
    assert where == str(home / "vllm_megamoe" / "__init__.py")
    command = str(python.with_name("vllm-megamoe"))
    assert "plan" in run([command, "--help"], **clean)
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    found = subprocess.run(
        [str(python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in found.stdout, found.stdout + found.stderr
    model = (tmp_path / "where").read_text()
    assert "holds" in run([command, "plan", model], **clean)


THEIRS = """
from pathlib import Path
from vllm_megamoe.testing import assert_layer_matches

def test_it(megamoe_checkpoint):
    model = megamoe_checkpoint("qwen3_moe", "msmodelslim-w8a8")
    assert_layer_matches(model, 0)
    Path("where").write_text(str(model))
"""
