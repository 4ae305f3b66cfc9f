"""Imports between packages go one way, as docs/architecture.md has it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BELOW = {
    "p4src": set(),
    "softswitch": set(),
    "controlplane": {"p4src"},
    "worker_agent": {"p4src", "controlplane"},
    "overlay": {"p4src", "controlplane"},
    "ps_server": {"p4src", "controlplane", "worker_agent"},
    "inart": {"worker_agent"},
    "examples": {"worker_agent"},
    "topologies": {"p4src", "controlplane", "worker_agent", "ps_server", "overlay"},
}
"""Of each package, what it may import; evaluation and tests may all."""
LIGHT = {"agentconfig", "rpc", "command_line", "inputs", "native_build"}
"""Of controlplane, what is there where an agent is: no topology, no solver."""
IMPORT = re.compile(r"^\s*(?:from (\w+)(?:\.(\w+))?\S* import (\w+)|import (\w+))", re.M)


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_what_is_below_it(package: str) -> None:
    command = ["git", "ls-files", f"{package}/*.py"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert files
    wrong = []
    for file in files:
        for name, module, what, alone in IMPORT.findall((ROOT / file).read_text()):
            other = name or alone
            if other in {*BELOW, "evaluation", "tests"} - {package} - BELOW[package]:
                wrong.append(f"{file}: {other}")
            if package in {"worker_agent", "ps_server"} and other == "controlplane" and (module or what) not in LIGHT:
                wrong.append(f"{file}: {other}.{module or what}")
    assert not wrong
