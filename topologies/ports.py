"""TCP ports for servers that have to be told their port before they listen."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10240


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports of 127.0.0.1 on which nobody listens.

    They are drawn from below the range from which the kernel gives ports to whoever connects: a port of that range can
    be another connection's by the time that the server binds it.
    """
    end = int(_EPHEMERAL.read_text().split()[0])
    found: list[int] = []
    candidates = range(min(_LOWEST, end // 2), end)
    for port in random.SystemRandom().sample(candidates, k=len(candidates)):
        if len(found) == count:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Old connections in TIME_WAIT do not count.
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise OSError(f"there are not {count} free TCP ports below {end}")
    return found


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which nobody listens."""
    return free_ports(1)[0]
