"""A signal ends a command that compiles its engine at first use, and the compiler with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

COMPILER = """#!/bin/sh
# A compiler that starts another program, as gcc does, which takes long.
case "$1" in --version) echo slow; exit ;; esac
echo half > "$TMPDIR/half.s"
sleep 300 &
echo $! > "$STARTED.new" && mv "$STARTED.new" "$STARTED"
wait
"""


@pytest.mark.parametrize(("end", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", [("ps",), ("agent", "--socket", "agent.sock"), ("allreduce",)], ids=lambda w: w[0])
def test_a_signal_ends_the_compiler(tmp_path: Path, words: tuple[str, ...], end: signal.Signals, status: int) -> None:
    compiler, started, cache = tmp_path / "cc", tmp_path / "started", tmp_path / "cache"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    # Options of the user's: what a wheel brought is not taken.
    given = {"CC": str(compiler), "STARTED": str(started), "INART_CACHE": str(cache), "INART_CFLAGS": "-g"}
    given["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "inart", *words, "--controller", "127.0.0.1:1"]
    with subprocess.Popen(command, env=os.environ | given, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            wait_until(started.exists, "it compiles")
            process.send_signal(end)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, said) == (status, b"")
    assert [file.name for file in cache.iterdir()] == [".lock"]
    number = Path("/proc", started.read_text().strip())
    wait_until(lambda: not number.exists() or ") Z " in (number / "stat").read_text(), "what it started has ended")
