"""Takes down what one emulation made: its processes, then its interfaces (its namespaces go with their processes).

A process of its own, so that it also works when the emulation is ended by Ctrl-C, SIGTERM or SIGKILL at any moment:
it waits until the pipe from its parent closes. Whatever belongs to the emulation is recognised without anybody having
written it down first, so nothing can be missed between making and noting:

- processes: by the variable MARK=token in the environment that they were started with,
- interfaces of the root namespace: by the name prefix that only this emulation uses (see `topologies.lifetime`),
- files: everything is in one directory.

Standard library only: it runs with `python -I -S`.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "INART_EMULATION"
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
LIMIT_SECONDS = 20.0


def interface_pattern(number: int) -> re.Pattern[str]:
    """Names of the root-namespace interfaces of the emulation with this number."""
    return re.compile(rf"inart{number}[hcl]\d+[ab]?")


def marked(token: str) -> Iterator[int]:
    """Process ids whose environment carries the token (this process apart)."""
    needle = f"{MARK}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # ended meanwhile
            continue
        if needle in environment.split(b"\0"):
            yield int(entry.name)


def end(token: str, sign: signal.Signals) -> int:
    """Send a signal to every marked process; returns how many there were."""
    count = 0
    for pid in list(marked(token)):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Looked at again with the descriptor in hand: the id may have gone to another process in between.
            if f"{MARK}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(descriptor, sign)
                count += 1
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return count


def interfaces(number: int) -> list[str]:
    pattern = interface_pattern(number)
    # Not /sys/class/net: that shows the namespace in which /sys was mounted, which need not be this one.
    return [name for _, name in socket.if_nameindex() if pattern.fullmatch(name)]


def clean(token: str, number: int, directory: str) -> bool:
    """End the processes, delete interfaces and files; returns whether nothing is left."""
    start = time.monotonic()
    end(token, signal.SIGTERM)
    end(token, signal.SIGHUP)  # Mininet's shells are interactive: they ignore SIGTERM
    while time.monotonic() - start < LIMIT_SECONDS:
        late = time.monotonic() - start > GRACE_SECONDS
        alive = end(token, signal.SIGKILL) if late else sum(1 for _ in marked(token))
        if not alive:
            break
        time.sleep(0.02)
    for name in interfaces(number):
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
    shutil.rmtree(directory, ignore_errors=True)
    return not interfaces(number) and not any(True for _ in marked(token))


def main() -> int:
    token, number, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    sys.stdin.buffer.read()  # returns when the parent closes its end or is gone
    return 0 if clean(token, number, directory) else 1


if __name__ == "__main__":
    sys.exit(main())
