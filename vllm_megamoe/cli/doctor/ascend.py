"""Checks of the Ascend stack. Where none of it is installed, one note says so: the CPU lane needs none of it."""

from collections.abc import Iterator

from vllm_megamoe.cli.doctor.check import Check
from vllm_megamoe.cli.doctor.environment import Environment

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


def one_build(env: Environment) -> Iterator[Check]:
    """A wrapper and kernels of different builds pass arguments that the other side reads differently."""
    wheel = env.versions.get("cann-ops-transformer")
    if wheel is None or not env.cann_version:
        return
    text = f"cann_ops_transformer {wheel} beside CANN {env.cann_version}; no file tells whether they are of one build"
    yield Check(name="one build", state="note", found=text, remedy=_REMEDIES["cann-ops-transformer"])
