"""CUDA's libraries as empty ones, so that a torch with CUDA can be imported without 5 GB that nobody calls.

pip finds torch 2.10.0 for x86-64 as a build with CUDA alone (for aarch64 it is a CPU build, and nothing is done here).
The loader wants every library that torch's own name, and every function in them, under its version. Each stand-in has
those, and all of them answer 100, `cudaErrorNoDevice`.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.setup_env.commands import run_logged
from tools.setup_env.say import SetupError, say

_CUDA = re.compile(r"(cu|nccl|nv|__cuda|__nv|Cu)")
"""How functions of CUDA's begin; those without a version are told by it."""

_BODY = "\tmov $100, %eax\n\tret\n"
Functions = dict[str, set[str]]
"""Version, empty for none -> names of functions."""


def write(torch: Path, log: Path) -> None:
    """Put the stand-ins beside torch's own libraries, where the loader looks for them.

    Raises:
        SetupError: there is no C compiler, or it fails.
    """
    own = [*sorted((torch / "lib").glob("*.so*")), *sorted(torch.glob("_C*.so"))]
    missing = sorted({name for path in own for name in _needed(path)} - {path.name for path in own})
    missing = [name for name in missing if not _is_there(name)]
    if not missing:
        return
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SetupError("torch 2.10.0 of this machine is built with CUDA, and standing in for CUDA needs a C compiler")
    say(f"standing in for {len(missing)} libraries of CUDA's, which torch 2.10.0 names and nothing here calls")
    for name, functions in _functions(own, missing).items():
        source, versions = log.with_name("stand_in.s"), log.with_name("stand_in.map")
        every = sorted({function for each in functions.values() for function in each})
        labels = "".join(f"\t.globl {each}\n\t.type {each}, @function\n{each}:\n" for each in every)
        source.write_text(f'\t.text\n{labels}{_BODY}\t.section .note.GNU-stack,"",@progbits\n', encoding="utf-8")
        scripts = [_script(version, each) for version, each in functions.items() if version]
        versions.write_text("".join(scripts), encoding="utf-8")
        command = [compiler, "-shared", "-nostdlib", "-o", str(torch / "lib" / name), f"-Wl,-soname,{name}"]
        command += [f"-Wl,--version-script={versions}"] if scripts else []
        advice = "Report the log with the version of your compiler."
        run_logged([*command, str(source)], log, f"could not make a stand-in for {name}", advice)


def _script(version: str, functions: Iterable[str]) -> str:
    return f"{version} {{ global: {' '.join(f'{each};' for each in sorted(functions))} }};\n"


def _functions(own: list[Path], missing: list[str]) -> dict[str, Functions]:
    """Library -> what torch's own libraries need of it and do not have themselves."""
    homes: dict[str, str] = {}
    undefined: set[str] = set()
    defined: set[str] = set()
    for path in own:
        homes |= _versions(path)
        for line in _said("nm", "-D", str(path)):
            kind, name = line.split()[-2:]
            if kind == "U":
                undefined.add(name)
            elif kind not in "wv":
                defined.add(name.partition("@")[0])
    found: dict[str, Functions] = {name: {} for name in missing}
    for each in undefined:
        name, _, version = each.partition("@")
        version = version.lstrip("@")
        home = homes.get(version, "") if version else missing[0] if _CUDA.match(name) else ""
        if home in found and name not in defined:
            found[home].setdefault(version, set()).add(name)
    return found


def _needed(path: Path) -> list[str]:
    return [each for line in _said("readelf", "-d", str(path)) for each in re.findall(r"NEEDED\).*\[(.*)\]", line)]


def _versions(path: Path) -> dict[str, str]:
    """Version -> the library that it is of."""
    found, home = {}, ""
    for line in _said("readelf", "-V", "-W", str(path)):
        of_file, of_version = re.search(r"File: (\S+)", line), re.search(r"Name: (\S+)\s+Flags", line)
        home = of_file[1] if of_file else home
        if of_version and home:
            found[of_version[1]] = home
    return found


def _is_there(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _said(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be started ({error}); install binutils") from error
    return done.stdout.splitlines()
