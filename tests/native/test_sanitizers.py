"""A whole job under sanitizers in a short run (`make sanitize` does more), and a check that the sanitizers find
defects.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize import KINDS, ROOT, environment, reports
from tests.support.examples import nightly

PLANTED = """
import sys
from pathlib import Path
from controlplane.common.native_build import load
library = load(Path("tests/native/planted.c"))
if sys.argv[1] == "race":
    library.planted_race()
elif sys.argv[1] == "memory":
    library.planted_memory(1)
else:
    library.planted_overflow(2**31 - 1)
"""


@pytest.mark.parametrize(
    ("kind", "fault", "says"),
    [
        ("thread", "race", "data race"),
        ("address", "memory", "heap-buffer-overflow"),
        ("undefined", "overflow", "signed integer overflow"),
    ],
)
def test_a_planted_fault_is_found(kind: str, fault: str, says: str, tmp_path: Path) -> None:
    made = _environment(kind, tmp_path)
    subprocess.run(
        [sys.executable, "-c", PLANTED, fault],
        env=os.environ | made,
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    found = "".join(path.read_text() for path in tmp_path.iterdir())
    assert says in found


@pytest.mark.namespaces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [nightly(kind) if kind == "undefined" else kind for kind in KINDS])
def test_a_job_with_all_that_happens_to_it_is_clean(kind: str, tmp_path: Path) -> None:
    _environment(kind, tmp_path)
    assert reports(kind, rounds=1, optimised=False) == ""


def _environment(kind: str, folder: Path) -> dict[str, str]:
    try:
        return environment(kind, folder / "report")
    except OSError as error:
        pytest.skip(str(error))
