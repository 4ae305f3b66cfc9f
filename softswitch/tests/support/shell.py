"""Runs p4runtime-shell in an environment of its own, as a person uses it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("P4RUNTIME_SHELL_PYTHON", CHECKOUT / ".venv-shell" / "bin" / "python"))
"""A Python with p4runtime-shell: $P4RUNTIME_SHELL_PYTHON, or what `./setup.sh shell` makes in InArt's repository."""

needs_shell = pytest.mark.skipif(
    not PYTHON.is_file(), reason="P4RUNTIME_SHELL_PYTHON does not name a Python with p4runtime-shell"
)


def say(command: Sequence[str], commands: str, folder: Path) -> str:
    """Return what the shell that `command` starts prints for these commands. folder: where IPython keeps its files."""
    environment = os.environ | {"IPYTHONDIR": str(folder / "ipython"), "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
    process = subprocess.run(
        command, input=commands, capture_output=True, text=True, timeout=150, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
