"""Kernels made for this processor by LLVM, and kept in a folder between processes.

LLVM comes with llvmlite, on which numba stands, which vLLM needs: no compiler has to be on the machine. A kernel takes
about 0.1 s to make. What is kept is named by its code, processor and LLVM, carries a checksum, and gets its name when
it is whole, so that any number of processes may make and read it at the same time.
"""

import ctypes
import hashlib
import importlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vllm_megamoe.environment import cache_folder

logger = logging.getLogger(__name__)

Kernel = Callable[[int], None]
"""Called with the address of a frame."""

_DIGEST_BYTES = 32
_KNOWN_LLVM = 20
"""Newest LLVM whose processor-specific functions were looked at; with a newer one the portable kernels run."""
_kept: list[Any] = []
"""LLVM's engines: the machine code goes with them."""


@cache
def why_not() -> str:
    """Why no kernel can run here, empty when they can."""
    try:
        llvm = _llvm()
    except ImportError as error:
        return f"llvmlite cannot be imported ({error}); it comes with numba"
    features = llvm.get_host_cpu_features()
    if llvm.get_process_triple().startswith("x86_64") and not (features.get("fma") and features.get("f16c")):
        return "the processor has no FMA and F16C instructions"
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return "torch runs without OpenMP here (no GOMP_parallel in this process)"
    return ""


@cache
def registers() -> int:
    """Vectors of 16 float32 that the processor's registers hold."""
    return 32 if _llvm().get_host_cpu_features().get("avx512f") else 8


@cache
def has_permute() -> bool:
    """Whether the processor has `decode.PERMUTE`."""
    llvm = _llvm()
    return bool(llvm.get_host_cpu_features().get("avx512f")) and llvm.llvm_version_info[0] <= _KNOWN_LLVM


@cache
def has_dot_product() -> bool:
    """Whether the processor has `task.DOT_PRODUCT`, and LLVM takes it in the form that is written here."""
    llvm = _llvm()
    return bool(llvm.get_host_cpu_features().get("avx512vnni")) and llvm.llvm_version_info[0] <= _KNOWN_LLVM


@cache
def has_pair_product() -> bool:
    """Whether the processor has `task.PAIR_PRODUCT`, and LLVM takes it in the form that is written here."""
    llvm = _llvm()
    return bool(llvm.get_host_cpu_features().get("avx512bf16")) and llvm.llvm_version_info[0] <= _KNOWN_LLVM


@cache
def processor() -> str:
    """The processor as LLVM names it, and what it has of vectors."""
    features = _llvm().get_host_cpu_features()
    found = [name for name in ("avx512f", "avx2", "neon") if features.get(name)]
    more = [name for name in ("avx512vnni", "avx512bf16") if features.get(name)]
    return " ".join([_llvm().get_host_cpu_name(), *found[:1], *more])


@cache
def _llvm() -> Any:
    binding = importlib.import_module("llvmlite.binding")
    _hide_from_scans(importlib.import_module("llvmlite.binding.ffi").lib)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _hide_from_scans(library: Any) -> None:
    """Let llvmlite's library say that it has no `__dict__`: it answers every name with a function.

    A second engine of a process would end there: vLLM looks at the `__dict__` of whatever stands in any module
    (triton_utils/dispatcher.py of vLLM 0.32, register_kernels).
    """
    kind = type(library)
    by_name = kind.__getattr__
    if hasattr(library, "__dict__"):

        def named(self: Any, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return by_name(self, name)

        kind.__getattr__ = named


@cache
def _machine() -> Any:
    llvm = _llvm()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic")


def build(name: str, assembly: str) -> Kernel:
    """The function `run` of a module, from the folder or made now."""
    start = time.perf_counter()
    llvm = _llvm()
    parts = (assembly, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), str(llvm.llvm_version_info))
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    file = cache_folder() / "kernels" / f"{name}-{key[:32]}.o"
    code = _read(file)
    source = "read"
    if code is None:
        module = llvm.parse_assembly(assembly)
        module.verify()
        code = _machine().emit_object(module)
        source = "made" if _write(file, code) else "made, not kept"
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _kept.append(engine)
    run = ctypes.c_void_p(engine.get_function_address("run"))
    seconds = time.perf_counter() - start
    logger.info("megamoe twin: kernel %s for %s %s in %.2f s (%s)", name, processor(), source, seconds, file)
    return _with_threads(run)


def _with_threads(run: ctypes.c_void_p) -> Kernel:
    """The kernel on torch's own OpenMP threads, with the cores that vLLM has bound them to."""
    import torch

    parallel = ctypes.CDLL(None).GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None

    def call(frame: int) -> None:
        parallel(run, frame, torch.get_num_threads(), 0)

    return call


def _read(file: Path) -> bytes | None:
    """A kept kernel, None when there is none or not a whole one."""
    try:
        held = file.read_bytes()
    except OSError:
        return None
    digest, code = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(file: Path, code: bytes) -> bool:
    """Keep a kernel; False where the folder cannot be written, which the log then says."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            part.write(hashlib.sha256(code).digest() + code)
        os.replace(part.name, file)
    except OSError:
        return False
    return True
