"""Checks the address that this machine's name resolves to, which gloo offers to the ranks of other machines."""

from __future__ import annotations

import os
import socket

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The environment variable that names the interface for gloo, which then does not resolve the host name."""
FIX = f"set {INTERFACE} to the interface that leads to the other machines, or correct /etc/hosts"


def loopback_problem() -> str:
    """Return in words that the name leads to this machine alone; empty if it does not, or if gloo does not use it."""
    if os.environ.get(INTERFACE):
        return ""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return f"the host name {name!r} cannot be resolved, so gloo uses a loopback address"
    if not address.startswith("127."):
        return ""
    return f"the host name {name!r} resolves to {address}, a loopback address, which gloo offers to other machines"
