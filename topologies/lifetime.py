"""The lifetime of one emulation: a number that no other emulation on this machine has, and a reaper that cleans up."""

import fcntl
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from topologies import reaper

MANAGEMENT_ROOT = "172.31.0.1"
_HOSTS_PER_NUMBER = 1022  # Each number has a /22 of 172.31.0.0/16.
_NUMBERS = range(1, 64)
PREFIX = "inart-emulation-"
LOCK = "lifetime"
LOCK_BYTES = 100


class Lifetime:
    """A reservation of a number, with a reaper that removes everything made under it.

    The number is part of interface names (`inart<number>h3`) and management addresses, so that emulations can run side
    by side. The reservation is an abstract Unix socket, which the kernel frees however the process ends. Files of the
    emulation belong in `directory`.
    """

    def __init__(self) -> None:
        sweep()
        self.token = secrets.token_hex(8)
        self.number, self._reservation = _reserve()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        # This process and the reaper hold the lock: when both are gone, the next emulation's `sweep` removes what is
        # left.
        lock = _locked(self.directory / LOCK, f"{self.token} {self.number}")
        assert lock is not None  # `_locked` waits for the lock of a file that it makes.
        self._lock = lock
        self._reaper: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper.__file__)), self.token, str(self.number), str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[self._lock.fileno()],
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment that every process of the emulation must be started with."""
        return os.environ | {reaper.MARK: self.token}

    def interface(self, kind: str, index: int, end: str = "") -> str:
        """Return the name of a root-namespace interface, of the kind h (host link), c (management) or l (link between
        switches).
        """
        name = f"inart{self.number}{kind}{index}{end}"
        if not reaper.interface_pattern(self.number).fullmatch(name):
            raise ValueError(f"{name} is not a name that the reaper knows")
        return name

    def management_address(self, index: int) -> str:
        """Return the management address of the host with this index (from 0)."""
        if not 0 <= index < _HOSTS_PER_NUMBER:
            raise ValueError(f"at most {_HOSTS_PER_NUMBER} hosts in one emulation")
        low = (self.number * 4) * 256 + index + 1
        return f"172.31.{low >> 8}.{low & 255}"

    def end(self) -> bool:
        """Remove everything, and return whether nothing is left. It may be called again."""
        if self._reaper is None:
            return True
        process, self._reaper = self._reaper, None
        pipe: IO[bytes] | None = process.stdin
        assert pipe is not None
        pipe.close()
        clean = process.wait(reaper.LIMIT_SECONDS + 30) == 0
        self._reservation.close()
        self._lock.close()
        return clean


def sweep() -> list[Path]:
    """Remove the remains of emulations whose process and reaper were both killed, and return their directories."""
    swept = []
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if not _is_own(directory.lstat(), stat.S_ISDIR):
                continue
            lock = _locked(directory / LOCK)
        except OSError:  # The directory is just being made or removed.
            continue
        if lock is None:
            continue
        with lock:
            token, _, number = lock.read(LOCK_BYTES).partition(" ")
            if not number.isdigit():
                continue
            # If this fails, another emulation has the number, and may have interfaces with it.
            reservation = _reserved(int(number))
            reaper.clean(token, int(number) if reservation is not None else 0, str(directory))
            if reservation is not None:
                reservation.close()
            swept.append(directory)
    return swept


def _locked(file: Path, content: str = "") -> IO[str] | None:
    """Return the file, locked until it is closed, or None if another process has locked it.

    With `content` the file is made with it, and the lock is waited for. Any user can make files with guessable names in
    the temporary folder, so a file that is no regular file of this user raises OSError, and no open waits for a writer.
    """
    how = os.O_RDWR | os.O_CREAT | os.O_EXCL if content else os.O_RDONLY | os.O_NONBLOCK
    opened = os.fdopen(os.open(file, how | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w+" if content else "r")
    try:
        if not _is_own(os.fstat(opened.fileno()), stat.S_ISREG):
            raise OSError(f"{file} is no regular file of this user")
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if content else fcntl.LOCK_NB))
    except BlockingIOError:
        opened.close()
        return None
    except OSError:
        opened.close()
        raise
    if content:
        opened.write(content)
        opened.flush()
    return opened


def _is_own(status: os.stat_result, kind: Callable[[int], bool]) -> bool:
    return kind(status.st_mode) and status.st_uid == os.geteuid()


def _reserved(number: int) -> socket.socket | None:
    """Return a socket that reserves the number, or None if an emulation of this machine has it."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        reservation.bind(f"\0inart-emulation-{number}")
    except OSError:
        reservation.close()
        return None
    return reservation


def _reserve() -> tuple[int, socket.socket]:
    for number in _NUMBERS:
        reservation = _reserved(number)
        if reservation is not None:
            return number, reservation
    raise RuntimeError(f"{len(_NUMBERS)} emulations run on this machine already")
