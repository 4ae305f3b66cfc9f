"""Imports between packages go one way, as docs/architecture.md describes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMON = {"p4src", "controlplane.common"}
PLANNER = COMMON | {"controlplane.planner"}
TARGETS = PLANNER | {"controlplane.targets"}
CORE = {"controlplane.service.core"}
SERVICE = TARGETS | CORE | {"controlplane.service"}
CLI = SERVICE | {"controlplane.cli"}
AGENT = COMMON | {"worker_agent"}
OVERLAY = PLANNER | {"overlay.core", "overlay.net"}
MAY_IMPORT = {
    "p4src": set(),
    "softswitch": set(),
    "controlplane.common": {"p4src"},
    "controlplane.planner": COMMON,
    "controlplane.targets": PLANNER,
    "controlplane.service.core": set(),
    "controlplane.service": TARGETS | CORE,
    "controlplane.cli": SERVICE,
    "controlplane": CLI,
    "worker_agent": COMMON | {"worker_agent.torch"},
    "worker_agent.torch": AGENT,
    "ps_server": AGENT,
    "overlay.core": PLANNER,
    "overlay.net": SERVICE | {"overlay.core"},
    "overlay.sim": OVERLAY,
    "overlay.sites": OVERLAY,
    "overlay": CLI | {"overlay.core", "overlay.net", "overlay.sim"},
    "inart": {"worker_agent", "overlay.sites"},
    "examples": AGENT | {"worker_agent.torch"},
    "evaluation.chaos": CLI | AGENT | {"topologies", "evaluation"},
    "topologies": CLI | AGENT | {"ps_server", "overlay", "overlay.core", "overlay.net", "overlay.sim"},
}
"""For each package, the other packages that its files may import; the rest of evaluation and tests may import all."""

PURE = {"controlplane.service.core": {"threading", "time", "queue", "socket", "os", "pathlib", "random", "logging"}}
"""Packages that decide but have no effects: the libraries with effects or a clock that they must not import."""

ONLY_IN = {
    "torch": {"worker_agent.torch", "overlay.net", "overlay.sites", "examples"},
    "grpc": {"controlplane.common", "controlplane.targets", "controlplane.service", "softswitch"},
}
"""Libraries that only these packages may import when they are imported themselves (inside a function any package
may).
"""


def package(module: str) -> str | None:
    """Return the longest known package that a module is in, or None when it is not ours or free to import all."""
    parts = module.split(".")
    names = (".".join(parts[:k]) for k in range(len(parts), 0, -1))
    return next((name for name in names if name in MAY_IMPORT or name in ("evaluation", "tests")), None)


def imported(file: Path, *, at_once: bool = False) -> set[str]:
    """Return the modules that a file imports; at_once: only imports outside functions and TYPE_CHECKING."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if at_once and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.Try)):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return found


def files(name: str) -> list[Path]:
    command = ["git", "ls-files", f"{name.replace('.', '/')}/*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / each for each in listed if package(each[:-3].replace("/", ".")) == name]


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_package_imports_what_is_below_it(name: str) -> None:
    wrong = []
    assert files(name)
    for file in files(name):
        for module in imported(file):
            other = package(module)
            if other not in {None, name} | MAY_IMPORT[name]:
                wrong.append(f"{file.relative_to(ROOT)}: {module}")
    assert not wrong


@pytest.mark.parametrize("name", PURE)
def test_a_pure_package_has_no_effects(name: str) -> None:
    for file in files(name):
        assert not {module.split(".")[0] for module in imported(file)} & PURE[name], file


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_stays_where_it_is_needed(library: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}"
        for name in MAY_IMPORT.keys() - ONLY_IN[library]
        for file in files(name)
        if any(module.split(".")[0] == library for module in imported(file, at_once=True))
    ]
    assert not wrong


def test_a_topology_is_made_without_numpy() -> None:
    """Commands that read a topology would start later otherwise."""
    words = "import sys, controlplane.planner.generators; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
