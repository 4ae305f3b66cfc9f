"""TCP ports for servers that have to be told their port before they listen."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10240
_TRIES = 1000


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports of 127.0.0.1 on which nobody listens.

    They are drawn from below the range from which the kernel gives ports to connections that ask for none: a port of
    that range can be another connection's by the time that the server binds it.
    """
    end = int(_EPHEMERAL.read_text().split()[0])
    draw = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES + count):
        if len(found) == count:
            return found
        port = draw.randrange(min(_LOWEST, end // 2), end)
        if port in found:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Old connections in TIME_WAIT do not count.
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    raise OSError(f"{count} free TCP ports below {end} were not found in {_TRIES} tries")


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which nobody listens."""
    return free_ports(1)[0]
