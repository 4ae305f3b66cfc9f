"""Runs a command as a child process: passes signals on to it, and ends it when the launcher is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from controlplane.common import tied as tied_module

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def tied(command: Sequence[str]) -> list[str]:
    """Return the command line of a command that SIGTERM ends when the thread that has started it ends, as it does when
    this process is killed."""
    return [sys.executable, "-I", "-S", tied_module.__file__, str(os.getpid()), *command]


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command to its end, and return its exit status: 128 + N where signal N ended it."""
    early: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        if child is None:
            early.append(number)
        elif not (number == signal.SIGINT and _from_terminal()):
            child.send_signal(number)

    heard = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        child = subprocess.Popen(tied(command), env=environment)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _from_terminal() -> bool:
    """Return whether Ctrl-C at the terminal reaches the command by itself, as part of the same foreground group."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
