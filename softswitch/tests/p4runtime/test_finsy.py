"""The client finsy works with the server, from an environment of its own: ``FINSY_PYTHON=/path/to/python pytest
...``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("FINSY_PYTHON")


@pytest.mark.skipif(PYTHON is None, reason="FINSY_PYTHON does not name a Python with finsy (pip install finsy)")
def test_finsy_works_within_its_features(tmp_path: Path) -> None:
    assert PYTHON is not None
    command = [sys.executable, "-m", "softswitch", "--no-p4", "--device-id", "1", "--cpu-port", "255",
               "--grpc-server-addr", "127.0.0.1:0"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch:
        try:
            assert switch.stdout is not None
            address = switch.stdout.readline().split("grpc=")[1].split()[0]
            done = subprocess.run([PYTHON, str(HERE / "finsy_session.py"), address, str(HERE)], capture_output=True,
                                  text=True, timeout=90, check=False)  # fmt: skip
        finally:
            switch.terminate()
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("pipeline True", "entries acl const_table exact_table lpm_table", "ALREADY_EXISTS", "deleted []",
                 "register [77]", "packet-in 255 60", "counter [1]", "digest 291", "backup True False",
                 "takes over True"):  # fmt: skip
        assert line in done.stdout, done.stdout
