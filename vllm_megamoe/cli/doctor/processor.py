"""Check of the processor, for the lane that computes on it."""

from collections.abc import Iterator

from vllm_megamoe.cli.doctor.check import Check
from vllm_megamoe.cli.doctor.environment import Environment

_TELLING = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


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
