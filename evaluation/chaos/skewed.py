"""Runs a Python module with a wall clock that another process can set, like a machine's wrong clock for one process.

    python -m evaluation.chaos.skewed FILE MODULE ARGUMENTS...

The first 8 bytes of FILE are the seconds (float64, little-endian) by which time.time() is ahead; a process that writes
to them makes the clock jump. The next 8 count how often the process has read a clock that was wrong (uint64). The
machine's own clock is never touched, nor are the monotonic clocks by which processes wait. gRPC's own modules get the
right time: they make deadlines of it, which its core in C compares with the machine's clock.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from pathlib import Path

SIZE = 16


class Clock:
    """The clock of one process, as another process sets it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(bytes(SIZE))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), SIZE)

    def jump(self, seconds: float) -> None:
        """Set the clock ahead of the right time by so many seconds from now on; 0 for the right time."""
        struct.pack_into("<d", self._memory, 0, seconds)

    @property
    def wrong_reads(self) -> int:
        """Number of times that the process has read a wrong time so far."""
        return int(struct.unpack_from("<Q", self._memory, 8)[0])


def skew(file: Path) -> None:
    """Have time.time() and time.time_ns() of this process follow the file from now on."""
    with file.open("r+b") as opened:
        memory = mmap.mmap(opened.fileno(), SIZE)
    right = time.time_ns

    def wrong_ns(caller: int = 1) -> int:
        (ahead,) = struct.unpack_from("<d", memory, 0)
        if sys._getframe(caller).f_globals.get("__name__", "").partition(".")[0] == "grpc":
            return right()
        if ahead:
            (count,) = struct.unpack_from("<Q", memory, 8)
            struct.pack_into("<Q", memory, 8, count + 1)
        return right() + int(ahead * 1e9)

    time.time_ns = wrong_ns
    time.time = lambda: wrong_ns(2) / 1e9


def main() -> None:
    file, module = sys.argv[1:3]
    sys.argv = [module, *sys.argv[3:]]
    sys.path.insert(0, os.getcwd())
    skew(Path(file))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
