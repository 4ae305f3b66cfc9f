"""The first snippet of docs/overlay.md does what its comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_first_snippet_runs() -> None:
    snippet = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "overlay.md").read_text(), flags=re.M | re.S)[0]
    command = [sys.executable, "-c", snippet]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    done, mean = ran.stdout.splitlines()
    assert done.startswith("Done(task=1, participants=('h0', 'h1',") and mean == "[5.5 5.5 5.5]"
