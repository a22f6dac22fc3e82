"""Write docs/compatibility.md and docs/errors.md from what the package declares.

python -m tools.write_compatibility
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.write_models import markdown
from vllm_megamoe import errors
from vllm_megamoe.environment import VARIABLES
from vllm_megamoe.lanes import PAIRINGS, TORCH
from vllm_megamoe.profiles.profile import PROFILE_NAMES
from vllm_megamoe.profiles.rules import RULES

DOCS = Path(__file__).resolve().parents[1] / "docs"

_COMPATIBILITY = """\
# Compatibility

Written by `python -m tools.write_compatibility`; do not edit.

Another release is rejected by name before anything starts. `VLLM_MEGAMOE_UNTESTED=on` serves with it all the same, and
a line that begins with UNTESTED says so at every start; another platform is never served. A torch outside of the range
is told in such a line too.
"""
_PROFILES = """
## Products

`9.1` is the operator of CANN 9.1.0, `9.2` its source of 2026-08-21. CANN 9.2.0 (2026-09-30) has not been read yet.
[limits.md](limits.md) has what each takes.
"""
_NAMESAKE = """
## A namesake

Where another package, or vLLM itself, has registered the quantization name `megamoe`, `--quantization megamoe` is an
error that says whose the name is. Nothing else changes: a checkpoint that names the other's method stays its own.
"""

_ERRORS = """\
# Errors

Written by `python -m tools.write_compatibility`; do not edit.

Every message says where, what came, what was expected and what to do. All derive from `MegaMoeError`; under vLLM they
are the last thing on the screen. Exit codes of `vllm-megamoe`: 0 all is well, 1 the answer is no, 2 bad input, 130
Ctrl-C. [troubleshooting.md](troubleshooting.md) goes from symptoms.

## Classes
"""
_RULES = """
## Rules of a product

A broken rule is named with the profile, what came, what is expected and its source ([limits.md](limits.md)). The plan
applies them before weights are read, the twin at creation or at the call, as the device does.
"""
_VARIABLES = """
## Environment variables with a wrong value

Each is rejected before a weight is read, with what it takes and an example.
"""


def compatibility() -> str:
    """docs/compatibility.md."""
    profiles = [("profile",), *((f"`{name}`",) for name in PROFILE_NAMES)]
    parts = [_COMPATIBILITY, *markdown(_pairings()), _PROFILES, *markdown(profiles), _NAMESAKE.rstrip("\n")]
    return "\n".join(parts) + "\n"


def _pairings() -> Iterator[tuple[str, ...]]:
    yield "vLLM", "platform", "beside it", "torch", "tested by"
    for pairing in PAIRINGS:
        beside = f"{pairing.plugin} {' or '.join(pairing.releases)}" if pairing.plugin else "-"
        by = "`make contract`, over a simulated NPU" if pairing.plugin else "`make test`; 0.30 in `make contract`"
        yield " or ".join(pairing.versions), pairing.platform, beside, f"{TORCH[0]} to {TORCH[1]}", by


def error_page() -> str:
    """docs/errors.md."""
    parts = [_ERRORS, *markdown(_classes()), _RULES, *markdown(_rules()), _VARIABLES, *markdown(_variables())]
    return "\n".join(parts) + "\n"


def _classes() -> Iterator[tuple[str, ...]]:
    yield "class", "also a", "raised when"
    for name, found in vars(errors).items():
        if inspect.isclass(found) and issubclass(found, errors.MegaMoeError):
            ours = (errors.MegaMoeError, Exception)
            also = [base.__name__ for base in found.__bases__ if base not in ours]
            yield f"`{name}`", ", ".join(also) or "-", (found.__doc__ or "").strip().splitlines()[0]


def _rules() -> Iterator[tuple[str, ...]]:
    yield "rule", "at", "says"
    for rule in RULES:
        yield f"`{rule.id}`", rule.at, rule.about


def _variables() -> Iterator[tuple[str, ...]]:
    yield "variable", "expected", "example"
    for variable in VARIABLES.values():
        yield f"`{variable.name}`", variable.expected, f"`{variable.example}`"


def main() -> int:
    """Write both pages."""
    for name, text in (("compatibility.md", compatibility()), ("errors.md", error_page())):
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
