"""A raw socket in another network namespace, for a process that stays in its own."""

import ctypes
import os
import socket
import threading
from pathlib import Path

from topologies.network import EmulationError

CLONE_NEWNET = 0x40000000


def packet_socket(namespace: str | Path, interface: str) -> socket.socket:
    """Return a raw socket (AF_PACKET) on an interface in the network namespace at this path, for use by this process.

    Raise EmulationError where the namespace or the interface is missing.
    """
    result: list[socket.socket | OSError] = []

    def enter_and_open() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY)
            try:
                # Only this thread enters the namespace, and it ends here; the socket stays in the namespace where it
                # was made.
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(descriptor, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            raw.bind((interface, 0))
            result.append(raw)
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=enter_and_open)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise EmulationError(f"no raw socket on {interface} in {namespace}: {result[0]}") from result[0]
    return result[0]
