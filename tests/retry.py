"""Runs pytest, and tests that fail once more, one after the other: python -m tests.retry PYTEST-ARGUMENTS...

Many tests start processes and sockets on a machine that others share. One of 4,000 that loses a race with a busy moment
must not refuse a change that has nothing to do with it, and must not be forgotten either: a test that passes only the
second time is named at the end, and is a defect to look into (CONTRIBUTING.md). More than three failures are not bad
luck: they stay failures. The exit status is pytest's: 0 if every test passed, the first or the second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 3
"""The most tests that run a second time."""
FAILED = 1
"""pytest's exit status when tests failed; any other one (interrupted, a wrong option, no tests) is passed on."""


def failures(cache: Path) -> list[str]:
    """Return the names of the tests that failed, as pytest keeps them in its cache folder, in order."""
    kept = cache / "v/cache/lastfailed"
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


def run(arguments: list[str]) -> int:
    """Run pytest with these arguments, and its failures once more; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder}"]
        status = subprocess.run([*command, *arguments], check=False).returncode
        failed = failures(Path(folder))
        if status != FAILED or not 0 < len(failed) <= MOST:
            return status
        print(f"\nonce more, one after the other: {' '.join(failed)}", flush=True)
        status = subprocess.run([*command, *failed], check=False).returncode
        unsteady = sorted(set(failed) - set(failures(Path(folder)))) if status in (0, FAILED) else []
    for name in unsteady:
        print(f"UNSTEADY: {name} failed and then passed. Its first failure is above; please look into it.", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
