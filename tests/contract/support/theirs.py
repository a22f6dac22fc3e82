"""Runs vllm-ascend's own unit tests that name MegaMoE, with their MagicMock for torch_npu or with our pytest plugin.

Their conftest asks `npu-smi` whether there is an NPU, and where there is one it leaves torch_npu as it is. The plugin's
`--megamoe-simulator` makes the session a host with one, ahead of that conftest. Their files are run as unpacked.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from contract.support.launch import HERE, ROOT, environment
from plugged import plugin_arguments

NAMED = re.compile(r"mega_?moe", re.IGNORECASE)
PRODUCT = "a2@9.2"
"""The product that their conftest names."""
RUN_LIMIT_S = 800.0


@dataclass(frozen=True)
class Outcome:
    """One test of theirs.

    Attributes:
        result: passed, failed, error or skipped.
        reason: the last line of what was raised, empty for a pass.
    """

    result: str
    reason: str = ""


def named_tests(sources: Path) -> list[str]:
    """Node ids of unit tests whose own text names MegaMoE, in the order of files and lines."""
    found: list[str] = []
    for path in sorted((sources / "tests" / "ut").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if NAMED.search(text):
            where = path.relative_to(sources).as_posix()
            found += (f"{where}::{name}" for name in _in(ast.parse(text), text))
    return found


def _in(tree: ast.AST, text: str, home: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _in(node, text, f"{home}{node.name}::")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            decorated = [ast.get_source_segment(text, each) or "" for each in (*node.decorator_list, node)]
            if any(NAMED.search(each) for each in decorated):
                yield f"{home}{node.name}"


@dataclass(frozen=True)
class Theirs:
    """One run of their tests.

    Attributes:
        outcomes: by test; parametrised cases are tests of their own.
        met: which torch_npu and torch.npu the tests had, for which product, and names that were asked for in vain.
    """

    outcomes: dict[str, Outcome]
    met: dict[str, Any]


def run_theirs(sources: Path, tests: list[str], *, simulated: bool) -> Theirs:
    """Run the tests in one process.

    Raises:
        AssertionError: pytest itself failed.
    """
    with tempfile.TemporaryDirectory(prefix="contract-theirs-") as name:
        report, probe = Path(name) / "report.xml", Path(name) / "probe.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
        command += ["-p", "theirs_probe", *(["--megamoe-simulator", PRODUCT, *plugin_arguments()] if simulated else [])]
        done = subprocess.run(
            [*command, *tests],
            cwd=sources,
            env=_environment(simulated=simulated) | {"CONTRACT_PROBE": str(probe)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )
        assert report.exists(), f"pytest left no report\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return Theirs(dict(_outcomes(ElementTree.parse(report).getroot())), json.loads(probe.read_text()))


def _environment(*, simulated: bool) -> dict[str, str]:
    whole, base = environment(PRODUCT), str(HERE / "stand_ins" / "base")
    if simulated:
        # No package of ours for torch_npu or the operator is on the path: the plugin brings both.
        return whole | {"PYTHONPATH": os.pathsep.join([base, str(ROOT)]), "CONTRACT_SIMULATED": "1"}
    return whole | {"PYTHONPATH": base}


def _outcomes(root: ElementTree.Element) -> Iterator[tuple[str, Outcome]]:
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if not bad:
            yield name, Outcome("passed")
            continue
        result = {"failure": "failed", "error": "error", "skipped": "skipped"}[bad[0].tag]
        message = (bad[0].get("message") or "").strip().splitlines()
        yield name, Outcome(result, message[0] if message else "")
