"""The bounds of one emulation: a number that no other emulation on this machine has, and a reaper behind it."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from topologies import reaper

MANAGEMENT_ROOT = "172.31.0.1"
_HOSTS_PER_NUMBER = 1022  # a /22 of 172.31.0.0/16 for each number
_NUMBERS = range(1, 64)


class Lifetime:
    """Reserves a number and guards everything that is made under it.

    The number gives interface names (`inart<number>h3`) and management addresses, so that emulations can run beside
    each other. The reservation is an abstract Unix socket: the kernel frees it however the process ends. Files of the
    emulation belong in `directory`.
    """

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.number, self._reservation = _reserve()
        self.directory = Path(tempfile.mkdtemp(prefix="inart-emulation-"))
        self._reaper: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper.__file__)), self.token, str(self.number), str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment that every process of the emulation must be started with."""
        return os.environ | {reaper.MARK: self.token}

    def interface(self, kind: str, index: int, end: str = "") -> str:
        """Name of a root-namespace interface; kind h (host link), c (management), l (link between switches)."""
        name = f"inart{self.number}{kind}{index}{end}"
        if not reaper.interface_pattern(self.number).fullmatch(name):
            raise ValueError(f"{name} is not a name that the reaper knows")
        return name

    def management_address(self, index: int) -> str:
        """Address of the host with this index (from 0) on its management interface."""
        if not 0 <= index < _HOSTS_PER_NUMBER:
            raise ValueError(f"at most {_HOSTS_PER_NUMBER} hosts in one emulation")
        low = (self.number * 4) * 256 + index + 1
        return f"172.31.{low >> 8}.{low & 255}"

    def end(self) -> bool:
        """Take everything down; returns whether nothing is left. May be called again."""
        if self._reaper is None:
            return True
        process, self._reaper = self._reaper, None
        pipe: IO[bytes] | None = process.stdin
        assert pipe is not None
        pipe.close()
        clean = process.wait(reaper.LIMIT_SECONDS + 30) == 0
        self._reservation.close()
        return clean


def _reserve() -> tuple[int, socket.socket]:
    for number in _NUMBERS:
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            reservation.bind(f"\0inart-emulation-{number}")
        except OSError:
            reservation.close()
            continue
        return number, reservation
    raise RuntimeError(f"{len(_NUMBERS)} emulations run on this machine already")
