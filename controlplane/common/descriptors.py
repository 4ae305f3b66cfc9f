"""Divides a server's file descriptors: strangers' connections never use those of its store, its files and its peers."""

from __future__ import annotations

import resource

MAX_CONNECTIONS = 16_384
HANDSHAKE_SECONDS = 10
"""Timeout of a connection's handshake: until then a stranger holds a descriptor."""
IDLE_SECONDS = 60
"""Time after which a connection without a call is closed, since such a one may be a stranger's."""


def raise_limit() -> int:
    """Raise this process's limit of file descriptors as far as it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_connections() -> int:
    """Return the number of connections that a server may accept at a time: half of the descriptors at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)
