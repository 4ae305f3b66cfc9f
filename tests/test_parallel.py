"""Test files that run at a time in forked processes: results are told, and one that ends early fails its test only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = """
import os
from pathlib import Path
import pytest
HERE = Path(__file__).parent

@pytest.fixture(scope="session")
def shared():
    yield os.getpid()
    (HERE / f"ended-{os.getpid()}").touch()
"""
GOOD = """
import warnings
IMPORTED = os.getpid()

def test_passes(shared, tmp_path): assert shared == os.getpid() != IMPORTED
def test_fails(shared): print("what it printed"); assert shared == 0
def test_warns(): warnings.warn("look out")
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
"""
ENDS = """
def test_before(): pass
def test_ends(): os._exit(7)
def test_after(shared): pass
"""
HANGS = """
import threading
import pytest

@pytest.mark.timeout(0.5)
def test_hangs():
    threading.Thread(target=threading.Event().wait, name="another one", daemon=True).start()
    threading.Event().wait()
"""


def test_results_are_told_and_a_process_that_ends_fails_only_its_test(tmp_path):
    for name, text in {"a": SHARED + GOOD, "b": SHARED + ENDS, "c": SHARED + GOOD, "d": HANGS}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "--jobs", "2", "--rootdir", str(tmp_path), "-ra"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert "4 failed, 6 passed, 2 skipped" in said, said
    for name in ("test_a.py::test_fails", "test_c.py::test_fails", "test_b.py::test_ends - the process",
                 "test_d.py::test_hangs - Failed: Timeout"):  # fmt: skip
        assert f"FAILED {name}" in said, said
    assert "Stack of another one" in said, said
    assert "what it printed" in said and "look out" in said and "not today" in said, said
    assert list(tmp_path.glob("ended-*")), "fixtures of the session end with their process"
