"""A test that fails once is tried again and named; one that fails twice, or too many at once, fail the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.retry import MOST

ROOT = Path(__file__).parent.parent
UNSTEADY = """
from pathlib import Path
def test_passes_the_second_time():
    ran = Path(__file__).with_suffix(".ran")
    first = not ran.exists()
    ran.touch()
    assert not first
def test_passes():
    pass
"""
BROKEN = "def test_broken():\n    assert False\n"
MANY = f"import pytest\n@pytest.mark.parametrize('n', range({MOST + 1}))\ndef test_broken(n):\n    assert False\n"
NO_MODULE = "import no_such_module\n"


@pytest.mark.parametrize(
    ("text", "status", "runs", "unsteady"),
    [(UNSTEADY, 0, 2, True), (BROKEN, 1, 2, False), (MANY, 1, 1, False), (NO_MODULE, 2, 1, False)],
    ids=["unsteady", "broken", "many", "does not import"],
)
def test_failures_run_once_more(tmp_path, text, status, runs, unsteady):
    (tmp_path / "test_made.py").write_text(text)
    command = [sys.executable, "-m", "tests.retry", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("UNSTEADY: " in done.stdout) == unsteady
    assert ("once more" in done.stdout) == (runs == 2)
