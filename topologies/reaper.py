"""Removes what one emulation made: its processes, then its interfaces (its namespaces end with their processes).

It is a process of its own, so that it also works when the emulation is ended by Ctrl-C, SIGTERM or SIGKILL at any
moment: it waits until the pipe from its parent closes. It recognises what belongs to the emulation without a list, so
nothing can be missed between making a thing and noting it:

- processes: by the variable MARK=token in the environment that they were started with,
- interfaces of the root namespace: by the name prefix that only this emulation uses (see `topologies.lifetime`),
- files: everything is in one directory.

It uses the standard library only, because it runs with `python -I -S`.
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
GRACE_SECONDS = 2.0  # seconds between SIGTERM and SIGKILL
LIMIT_SECONDS = 20.0


def interface_pattern(number: int) -> re.Pattern[str]:
    """Return a pattern of the names of root-namespace interfaces of the emulation with this number."""
    return re.compile(rf"inart{number}[hcl]\d+[a-h]?")


def marked(token: str) -> Iterator[int]:
    """Yield the ids of processes whose environment has the token (except this process)."""
    needle = f"{MARK}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # The process has ended in the meantime.
            continue
        if needle in environment.split(b"\0"):
            yield int(entry.name)


def end(token: str, sign: signal.Signals) -> int:
    """Send a signal to every marked process, and return how many there were."""
    count = 0
    for pid in list(marked(token)):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Check again with the descriptor in hand: the id may have gone to another process in between.
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
    # /sys/class/net would show the namespace in which /sys was mounted, which need not be this one.
    return [name for _, name in socket.if_nameindex() if pattern.fullmatch(name)]


def clean(token: str, number: int, directory: str) -> bool:
    """End the processes, delete interfaces and files, and return whether nothing is left."""
    start = time.monotonic()
    end(token, signal.SIGTERM)
    end(token, signal.SIGHUP)  # Mininet's shells are interactive, and ignore SIGTERM.
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
    sys.stdin.buffer.read()  # This returns when the parent closes its end or has ended.
    return 0 if clean(token, number, directory) else 1


if __name__ == "__main__":
    sys.exit(main())
