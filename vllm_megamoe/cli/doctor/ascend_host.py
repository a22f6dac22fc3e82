"""What a host with NPUs has: devices, driver, the operator's wrapper and its kernels, read from files alone.

Importing any of these packages would compile extensions or open devices; their sources, headers and records of
installation say what is needed.
"""

import ast
import hashlib
import importlib.util
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

CREATE, CALL = "get_symm_buffer_for_mega_moe", "mega_moe"
_DRIVER = Path("/usr/local/Ascend")
# Where CANN puts the operator's header: its own packages, then packages of a vendor (opp/vendors).
_HEADERS = ("include/aclnnop/aclnn_mega_moe.h", "*/include/aclnnop/aclnn_mega_moe.h")
_VENDOR_HEADERS = ("opp/vendors/*/op_api/include/aclnn_mega_moe.h", "opp/vendors/*/op_api/include/*/aclnn_mega_moe.h")
_RECORDS = ("share/info/*transformer*/version.info", "opp/version.info", "opp/vendors/*/version.info")


@dataclass(frozen=True, slots=True)
class Source:
    """One side of the operator: the Python wrapper, or the header of its kernels.

    Attributes:
        names: of its functions' arguments.
        digest: of the file, 12 digits of a SHA-256.
        date: of the file, as it was installed.
        place: the file.
    """

    names: frozenset[str]
    digest: str
    date: str
    place: str


@dataclass(frozen=True, slots=True)
class AscendHost:
    """The host; empty where a file is not there.

    Attributes:
        npus: devices that this process sees.
        built_for: the product that vllm-ascend was built for, as it calls it.
        wrapper, kernels: of the operator; a vendor's kernels come before CANN's own.
        records: package -> version and time stamp, from CANN's records.
        driver, firmware: versions.
    """

    npus: int = 0
    built_for: str = ""
    wrapper: Source | None = None
    kernels: Source | None = None
    records: dict[str, str] = field(default_factory=dict)
    driver: str = ""
    firmware: str = ""


def read_host(home: str | None, root: Path = Path("/")) -> AscendHost:
    """Look at this host.

    Args:
        home: ASCEND_HOME_PATH, None where it is not set.
        root: of the file system, for tests.
    """
    place = Path(home) if home else None
    return AscendHost(
        npus=sum(bool(re.fullmatch(r"davinci\d+", path.name)) for path in (root / "dev").glob("davinci*")),
        built_for=_built_for(),
        wrapper=_wrapper(),
        kernels=_kernels(place),
        records=_records(place),
        driver=_value(root / _DRIVER.relative_to("/") / "driver" / "version.info", "Version"),
        firmware=_value(root / _DRIVER.relative_to("/") / "firmware" / "version.info", "Version"),
    )


def _folder(package: str) -> Path | None:
    """A package's folder; nothing of it is imported."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _built_for() -> str:
    folder = _folder("vllm_ascend")
    text = _text(folder / "_build_info.py") if folder else ""
    found = re.search(r"__device_type__\s*=\s*['\"](\w+)['\"]", text)
    return found[1] if found else ""


def _wrapper() -> Source | None:
    folder = _folder("cann_ops_transformer")
    return read_wrapper(folder / "ops" / "mega_moe.py") if folder else None


def read_wrapper(path: Path) -> Source | None:
    """The wrapper's two functions, from its source; None where it does not define both."""
    if not path.is_file():
        return None
    functions = [node for node in ast.parse(_text(path)).body if isinstance(node, ast.FunctionDef)]
    heads = {node.name: node.args for node in functions if node.name in (CREATE, CALL)}
    names = {argument.arg for of in heads.values() for argument in (*of.args, *of.kwonlyargs)}
    return _source(path, names) if len(heads) == 2 else None


def _kernels(home: Path | None) -> Source | None:
    if home is None:
        return None
    for pattern in (*_VENDOR_HEADERS, *_HEADERS):
        for path in sorted(home.glob(pattern)):
            return read_header(path)
    return None


def read_header(path: Path) -> Source | None:
    """The names in the declaration of aclnnMegaMoeGetWorkspaceSize."""
    found = re.search(r"aclnnMegaMoeGetWorkspaceSize\s*\(([^)]*)\)\s*;", _text(path))
    return _source(path, set(re.findall(r"(\w+)\s*(?:,|$)", found[1]))) if found else None


def _source(path: Path, names: set[str]) -> Source:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    date = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    return Source(frozenset(names), digest, date, str(path))


def _records(home: Path | None) -> dict[str, str]:
    found = {}
    for pattern in _RECORDS if home else ():
        for path in sorted(home.glob(pattern)) if home else ():
            values = [_value(path, name) for name in ("Version", "timestamp")]
            found[path.parent.name] = " ".join(value for value in values if value)
    return found


def _value(path: Path, name: str) -> str:
    """`name=` of a record, in any case."""
    found = re.search(rf"^{name}=(.*)$", _text(path), re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
