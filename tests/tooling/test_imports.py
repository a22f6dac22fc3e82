"""The design's import rules: imports run one way, and what is heavy stays where it belongs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "vllm_megamoe"

LAYERS = (
    {"plugin", "cli", "demo"},
    {"testing"},
    {"lanes"},
    {"layer"},
    {"plan"},
    {"checkpoint"},
    {"ops", "simulator"},
    {"experts"},
    {"layout"},
    {"environment"},
    {"profiles", "numerics"},
    {"acl"},
    {"errors"},
)
"""Left may import right (here: upper may import lower); parts of one layer do not import each other."""

BESIDE = {("simulator", "ops"), ("ops", "simulator")}
"""The simulator stands beside ops, which resolves it where the CANN adapter would be imported."""

EDGES = {
    "vllm": ("plugin", "lanes", "testing/engines"),
    "vllm_ascend": ("lanes",),
    "torch_npu": ("ops/cann", "layout"),
    "cann_ops_transformer": ("ops/cann",),
}
"""Foreign package -> where in ours it may be imported, as the beginning of a path."""

LAZY = {"torch_npu", "cann_ops_transformer", "vllm_ascend"}
"""Absent on most machines, so only ever imported inside a function."""


@dataclass(frozen=True)
class Import:
    """One imported module, and whether it is imported when its file is."""

    file: str
    line: int
    module: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(path: Path, relative: str) -> Iterator[Import]:
    """Yield every import of a file, those under TYPE_CHECKING included: a type is a dependency too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(child)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(function)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative}:{node.lineno}: relative import; write {PACKAGE}. in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            yield Import(relative, node.lineno, name, id(node) in inside)


@pytest.fixture(scope="module")
def imports(repository: Path) -> list[Import]:
    package = repository / PACKAGE
    return [
        found
        for path in sorted(package.rglob("*.py"))
        for found in imports_of(path, path.relative_to(package).as_posix())
    ]


def rank(part: str) -> int:
    for number, parts in enumerate(LAYERS):
        if part in parts:
            return number
    raise AssertionError(f"{part} has no place in the import order; give it one in the design and in LAYERS")


def part_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def test_imports_run_one_way(imports: list[Import]) -> None:
    wrong = []
    for found in imports:
        names = found.module.split(".")
        if names[0] != PACKAGE or found.file == "__init__.py":
            continue
        importer, imported = part_of(found.file), names[1]
        if importer != imported and (importer, imported) not in BESIDE and rank(importer) >= rank(imported):
            wrong.append(str(found))
    assert not wrong, wrong


APART = {
    "ops/cann/": ("vllm_megamoe.ops.twin",),
    "ops/twin/": ("vllm_megamoe.ops.cann", "vllm_megamoe.simulator"),
    "ops/": ("vllm_megamoe.ops.cann", "vllm_megamoe.ops.twin"),
}
"""Where in the package (the longest beginning of a path counts) -> what is not imported there: backends stand apart."""

RESOLVER = "ops/backend.py"
"""Imports the backend that is used, inside a function."""


def test_backends_stand_apart(imports: list[Import]) -> None:
    wrong = []
    for found in imports:
        place = max((start for start in APART if found.file.startswith(start)), key=len, default=None)
        if place is None or (found.file == RESOLVER and found.lazy):
            continue
        if found.module.startswith(APART[place]):
            wrong.append(str(found))
    assert not wrong, wrong


def test_the_devices_path_loads_nothing_of_the_twin() -> None:
    modules = "adapter", "vllm_megamoe.ops", "vllm_megamoe.ops.backend"
    code = "; ".join(
        [
            "import sys, importlib",
            f"[importlib.import_module(m.replace('adapter', 'vllm_megamoe.ops.cann.adapter')) for m in {modules}]",
            "print([m for m in sys.modules if m.startswith(('vllm_megamoe.ops.twin', 'vllm_megamoe.simulator'))])",
        ]
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"


def test_every_part_has_a_place(repository: Path) -> None:
    parts = {
        path.name.removesuffix(".py")
        for path in (repository / PACKAGE).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    for part in parts - {"__init__"}:
        rank(part)


@pytest.mark.parametrize("foreign", EDGES)
def test_foreign_packages_stay_at_their_edge(imports: list[Import], foreign: str) -> None:
    wrong = [
        str(found)
        for found in imports
        if found.module.split(".")[0] == foreign
        and (not found.file.startswith(EDGES[foreign]) or (foreign in LAZY and not found.lazy))
    ]
    assert not wrong, wrong


def test_no_part_takes_a_name_of_the_standard_library(repository: Path) -> None:
    taken = [
        path.name
        for path in (repository / PACKAGE).iterdir()
        if path.name.removesuffix(".py") in sys.stdlib_module_names
    ]
    assert not taken


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("vllm_megamoe", ("torch", "numpy", "vllm", "transformers", "pydantic", "rich", "typer")),
        ("vllm_megamoe.errors", ("torch", "numpy", "vllm", "transformers", "pydantic", "rich", "typer")),
        ("vllm_megamoe.plugin", ("torch", "numpy", "vllm", "transformers", "pydantic", "rich", "typer")),
        ("vllm_megamoe.testing.engines", ("torch", "numpy", "vllm", "transformers", "pytest")),
        ("vllm_megamoe.testing.plugin", ("torch", "numpy", "vllm", "transformers", "pydantic")),
        ("vllm_megamoe.demo.__main__", ("torch", "numpy", "vllm", "transformers")),
        ("vllm_megamoe.numerics", ("vllm", "transformers", "torch_npu")),
        ("vllm_megamoe.layout", ("vllm", "transformers", "torch_npu")),
        ("vllm_megamoe.checkpoint", ("vllm", "transformers", "torch_npu")),
        ("vllm_megamoe.plan", ("vllm", "transformers", "torch_npu")),
        ("vllm_megamoe.cli.app", ("torch", "numpy", "vllm", "transformers", "torch_npu", "matplotlib")),
        ("vllm_megamoe.ops", ("vllm", "transformers", "torch_npu", "cann_ops_transformer", "torch._dynamo")),
        ("vllm_megamoe.simulator", ("vllm", "transformers", "torch_npu", "cann_ops_transformer")),
    ],
)
def test_importing_brings_nothing_heavy(module: str, absent: tuple[str, ...]) -> None:
    code = (
        f"import sys, importlib; importlib.import_module({module!r}); print(sorted(set(sys.modules) & {set(absent)}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"
