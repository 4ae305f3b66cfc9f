"""Becomes a command that the kernel ends with SIGTERM when its parent dies, however that happens.

It is run by its path (`python -I -S .../tied.py PARENT COMMAND ...`) and imports nothing of ours, so that it takes
milliseconds; Python code between fork and exec would not be safe beside the launcher's threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_RUNNABLE, NOT_FOUND = 126, 127
"""Exit statuses of a command that cannot be started, as in shells."""


def main() -> int:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # The parent died before prctl took effect.
        return 128 + signal.SIGTERM
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"inart: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE


if __name__ == "__main__":
    sys.exit(main())
